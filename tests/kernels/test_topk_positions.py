"""Top-k over positions on the bundled interpreter: exact against sorting in Python."""

from __future__ import annotations

import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.topk_positions_nki import spreads_rows, topk_positions
from tests.kernels.formulas import NUMERICS, layouts_of


def golden(
    scores: torch.Tensor, visible: torch.Tensor, top_k: int, candidates: torch.Tensor | None
) -> list[list[int]]:
    out = []
    for t, row in enumerate(scores.tolist()):
        allowed = [
            j
            for j in range(int(visible[t]))
            if row[j] > -float("inf") and (candidates is None or bool(candidates[t, j]))
        ]
        best = sorted(sorted(allowed, key=lambda j: (-row[j], j))[:top_k])
        width = min(top_k, len(row))
        out.append(best + [-1] * (width - len(best)))
    return out


def problem(
    tokens: int, entries: int, *, ties: bool = False, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(tokens, entries, generator=generator)
    if ties:
        scores = scores.mul(2).round()
    visible = torch.randint(0, entries + 1, (tokens,), generator=generator)
    visible[:1] = entries
    return scores, visible, torch.rand(tokens, entries, generator=generator) < 0.5


def assert_exact(
    scores: torch.Tensor, visible: torch.Tensor, top_k: int, candidates: torch.Tensor | None
) -> None:
    found = topk_positions(scores, visible, top_k, candidates, numerics=NUMERICS)
    assert found.dtype == torch.int64
    assert found.tolist() == golden(scores, visible, top_k, candidates)


@pytest.mark.parametrize("tokens", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("ties", [False, True])
def test_exact_at_tile_borders(tokens: int, ties: bool) -> None:
    scores, visible, candidates = problem(tokens, 40, ties=ties)
    assert_exact(scores, visible, 8, None)
    assert_exact(scores, visible, 8, candidates)


@pytest.mark.parametrize("entries", [1, 7, 8, 9, 63, 300])
@pytest.mark.parametrize("top_k", [1, 7, 8, 9, 20, 512])
def test_any_number_of_entries_and_of_rounds(entries: int, top_k: int) -> None:
    scores, visible, candidates = problem(5, entries, ties=True, seed=entries)
    assert_exact(scores, visible, top_k, None)
    assert_exact(scores, visible, top_k, candidates)


@pytest.mark.parametrize("entries", [4095, 4097, 16384])
def test_rows_longer_than_a_chunk_up_to_the_limit(entries: int) -> None:
    scores, visible, candidates = problem(2, entries, ties=True)
    assert_exact(scores, visible, 20, candidates)
    assert_exact(scores, visible, 20, None)


def test_a_row_that_sees_nothing_is_all_minus_one() -> None:
    scores, visible, _ = problem(3, 20)
    visible[1] = 0
    assert_exact(scores, visible, 8, None)
    found = topk_positions(scores, visible, 8, torch.zeros(3, 20).bool(), numerics=NUMERICS)
    assert (found == -1).all()


def test_hidden_scores_may_be_anything() -> None:
    scores, visible, candidates = problem(4, 30)
    visible[:] = 10
    want = topk_positions(scores, visible, 8, candidates, numerics=NUMERICS)
    scores[:, 10:] = torch.nan
    scores[:, :10][~candidates[:, :10]] = torch.nan
    assert torch.equal(topk_positions(scores, visible, 8, candidates, numerics=NUMERICS), want)


def test_visible_minus_infinity_is_never_chosen_and_zeros_of_both_signs_tie() -> None:
    scores = torch.tensor([[-torch.inf, -0.0, 0.0, -1.0, -torch.inf, 0.0, -2.0, -3.0, -4.0]])
    assert_exact(scores, torch.tensor([9]), 2, None)
    assert_exact(scores, torch.tensor([9]), 8, None)


def test_all_scores_equal_take_the_first_positions() -> None:
    found = topk_positions(torch.zeros(2, 50), torch.tensor([50, 5]), 12, None, numerics=NUMERICS)
    assert found.tolist() == [list(range(12)), [0, 1, 2, 3, 4, *[-1] * 7]]


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_ids_and_are_not_modified(layout: str) -> None:
    scores, visible, candidates = problem(5, 40)
    view, mask = layouts_of(scores)[layout], layouts_of(candidates)[layout]
    assert topk_positions(view, visible, 8, mask, numerics=NUMERICS).tolist() == golden(
        scores, visible, 8, candidates
    )
    assert torch.equal(view, scores)
    assert torch.equal(mask, candidates)


def test_two_cores_give_the_ids_of_one() -> None:
    scores, visible, candidates = problem(5, 40)
    with lnc_selected(2):
        assert_exact(scores, visible, 8, candidates)


@pytest.mark.parametrize(("tokens", "entries"), [(0, 8), (3, 0)])
def test_nothing_to_choose_needs_no_launch(tokens: int, entries: int) -> None:
    reset_counters()
    visible = torch.zeros(tokens, dtype=torch.int64)
    found = topk_positions(torch.zeros(tokens, entries), visible, 4, None, numerics=NUMERICS)
    assert found.shape == (tokens, min(4, entries))
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    scores, visible, candidates = problem(2, 20)
    with pytest.raises(UsageError, match="top_k is 0"):
        topk_positions(scores, visible, 0, None, numerics=NUMERICS)
    with pytest.raises(UsageError, match="pass a bool mask"):
        topk_positions(scores, visible, 4, candidates.float(), numerics=NUMERICS)
    with pytest.raises(KernelError, match="n is 16385") as found:
        topk_positions(torch.zeros(1, 16385), torch.tensor([4]), 4, None, numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="fp8_max 240"):
        topk_positions(scores, visible, 4, None, numerics=FAST)


@pytest.fixture(params=[True, False], ids=["across_partitions", "on_partitions"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each of the two ways, whatever the cost model would take."""
    spread: bool = request.param
    monkeypatch.setattr("kernels.topk_positions_nki.spreads_rows", lambda *_: spread)
    return spread


@pytest.mark.parametrize("entries", [1, 7, 8, 9, 127, 128, 129, 255, 257, 700])
@pytest.mark.parametrize("top_k", [1, 9, 200])
@pytest.mark.usefixtures("way")
def test_both_ways_are_exact(entries: int, top_k: int) -> None:
    for ties in (False, True):
        scores, visible, candidates = problem(9, entries, ties=ties)
        assert_exact(scores, visible, top_k, None)
        assert_exact(scores, visible, top_k, candidates)


@pytest.mark.parametrize("tokens", [1, 3, 8, 9, 17])
@pytest.mark.usefixtures("way")
def test_both_ways_are_exact_on_two_cores(tokens: int) -> None:
    scores, visible, candidates = problem(tokens, 300, ties=True)
    with lnc_selected(2):
        assert_exact(scores, visible, 64, candidates)


@pytest.mark.usefixtures("way")
def test_values_that_differ_in_one_bit_are_told_apart() -> None:
    ordered = [3e38, 1.0 + 2.0**-23, 1.0, 1.0 - 2.0**-24, 2.0**-126, 2.0**-149, 0.0]
    values = torch.tensor([*ordered, *(-value for value in reversed(ordered[:-1]))])
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(5))
    scores = values[order].unsqueeze(0)
    visible = torch.tensor([len(values)])
    for top_k in range(1, len(values) + 1):
        assert_exact(scores, visible, top_k, None)


@pytest.mark.usefixtures("way")
def test_zeros_of_both_signs_tie_and_the_first_are_taken() -> None:
    scores = torch.tensor([[-0.0, 0.0, -1.0, 0.0, -0.0, -2.0, 0.0, -0.0, -3.0, 0.0]])
    visible = torch.tensor([10])
    found = topk_positions(scores, visible, 5, None, numerics=NUMERICS)
    assert found.tolist() == [[0, 1, 3, 4, 6]]


@pytest.mark.usefixtures("way")
def test_a_visible_minus_infinity_is_never_chosen() -> None:
    scores = torch.full((2, 40), -torch.inf)
    scores[1, 33] = -3.4e38
    assert_exact(scores, torch.tensor([40, 40]), 8, None)


@pytest.mark.usefixtures("way")
def test_what_is_hidden_may_be_anything() -> None:
    scores, _, candidates = problem(3, 60)
    visible = torch.tensor([60, 20, 0])
    plain = topk_positions(scores, visible, 16, candidates, numerics=NUMERICS)
    hidden = (torch.arange(60) >= visible.unsqueeze(1)) | ~candidates
    for poison in (torch.nan, torch.inf, 3e38):
        dirty = scores.masked_fill(hidden, poison)
        assert torch.equal(topk_positions(dirty, visible, 16, candidates, numerics=NUMERICS), plain)


def test_decode_goes_across_the_partitions_and_a_short_list_does_not() -> None:
    assert spreads_rows(1, 4096, 512)
    assert spreads_rows(1, 16384, 512)
    assert spreads_rows(128, 4096, 512)
    assert not spreads_rows(1, 64, 8)
    assert not spreads_rows(128, 4096, 8)


def test_the_way_across_the_partitions_is_the_cheaper_one_where_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores, visible, _ = problem(1, 4096)
    estimated_us = {}
    for spread in (True, False):
        monkeypatch.setattr(
            "kernels.topk_positions_nki.spreads_rows", lambda *_, choice=spread: choice
        )
        reset_counters()
        topk_positions(scores, visible, 512, None, numerics=NUMERICS)
        estimated_us[spread] = counters().estimated_ns / 1e3
    assert estimated_us[True] < 25
    assert estimated_us[False] > 1000
