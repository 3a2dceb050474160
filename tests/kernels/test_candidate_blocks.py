"""Candidate blocks on the bundled interpreter: exact against sorting in Python."""

from __future__ import annotations

import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.candidate_blocks_nki import candidate_blocks
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, layouts_of


def golden(
    scores: torch.Tensor, visible: torch.Tensor, block_size: int, num_blocks: int
) -> list[list[bool]]:
    out = []
    for row, seen in zip(scores.tolist(), visible.tolist(), strict=True):
        best = {
            b: max(row[b * block_size : min((b + 1) * block_size, seen)])
            for b in range(-(-seen // block_size))
        }
        newest = (seen - 1) // block_size
        ranked = sorted(best, key=lambda b: (b != newest, -best[b], b))[:num_blocks]
        out.append([j // block_size in ranked for j in range(len(row))])
    return out


def problem(
    tokens: int, entries: int, *, ties: bool = False, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(tokens, entries, generator=generator)
    visible = torch.randint(0, entries + 1, (tokens,), generator=generator)
    visible[:1] = entries
    return (scores.round() if ties else scores), visible


def assert_exact(
    scores: torch.Tensor, visible: torch.Tensor, block_size: int, num_blocks: int
) -> None:
    mask = candidate_blocks(scores, visible, block_size, num_blocks, numerics=NUMERICS)
    assert mask.dtype == torch.bool
    assert mask.tolist() == golden(scores, visible, block_size, num_blocks)


@pytest.mark.parametrize("tokens", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("ties", [False, True])
def test_exact_at_tile_borders(tokens: int, ties: bool) -> None:
    assert_exact(*problem(tokens, 60, ties=ties), 4, 4)


@pytest.mark.parametrize("entries", [1, 7, 31, 32, 33, 300])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 9), (4, 1), (8, 3), (8, 20), (3, 8)])
def test_any_block_and_any_tail(entries: int, block_size: int, num_blocks: int) -> None:
    scores, visible = problem(6, entries, ties=True, seed=entries)
    assert_exact(scores, visible, block_size, num_blocks)


@pytest.mark.parametrize("entries", [4095, 4097, 20000])
def test_rows_longer_than_a_chunk(entries: int) -> None:
    assert_exact(*problem(2, entries, ties=True), 8, 20)
    assert_exact(*problem(2, entries, ties=True), 8, 4000)


def test_the_newest_block_is_forced_whatever_it_scores() -> None:
    scores = torch.arange(32.0).flip(0)[None]
    mask = candidate_blocks(scores, torch.tensor([30]), 4, 2, numerics=NUMERICS)
    assert mask[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 28, 29, 30, 31]


def test_a_row_that_sees_nothing_has_no_candidates_and_hidden_scores_may_be_nan() -> None:
    scores, visible = problem(3, 40)
    visible[:] = torch.tensor([0, 9, 40])
    want = golden(scores, visible, 4, 3)
    scores[0], scores[1, 9:] = torch.nan, torch.nan
    mask = candidate_blocks(scores, visible, 4, 3, numerics=NUMERICS)
    assert mask.tolist() == want
    assert not mask[0].any()


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_mask_and_are_not_modified(layout: str) -> None:
    scores, visible = problem(5, 40)
    view = layouts_of(scores)[layout]
    mask = candidate_blocks(view, visible, 4, 3, numerics=NUMERICS)
    assert mask.tolist() == golden(scores, visible, 4, 3)
    assert torch.equal(view, scores)


def test_two_cores_give_the_mask_of_one() -> None:
    with lnc_selected(2):
        assert_exact(*problem(5, 40), 4, 3)


def test_nothing_to_choose_needs_no_launch() -> None:
    reset_counters()
    mask = candidate_blocks(torch.zeros(0, 8), torch.zeros(0).long(), 4, 2, numerics=NUMERICS)
    assert mask.shape == (0, 8)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    scores, visible = problem(2, 20)
    with pytest.raises(UsageError, match="at least 1"):
        candidate_blocks(scores, visible, 0, 2, numerics=NUMERICS)
    with pytest.raises(UsageError, match="num_visible"):
        candidate_blocks(scores, visible[:1], 4, 2, numerics=NUMERICS)
    with pytest.raises(KernelError, match="number of blocks is 8193"):
        candidate_blocks(torch.zeros(1, 8193), torch.tensor([4]), 1, 2, numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        candidate_blocks(scores, visible, 4, 2, numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
