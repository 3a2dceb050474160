"""Top-k over the vocabulary on the bundled interpreter: exact against sorting in Python."""

from __future__ import annotations

import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.vocab_topk_nki import vocab_topk
from tests.kernels.formulas import NUMERICS, layouts_of


def logits_of(tokens: int, vocabulary: int, *, ties: bool = False) -> torch.Tensor:
    logits = torch.randn(tokens, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    return logits.mul(4).round() if ties else logits


def assert_exact(logits: torch.Tensor, top_k: int) -> None:
    values, ids = vocab_topk(logits, top_k, numerics=NUMERICS)
    want = [
        sorted(range(len(row)), key=lambda j, row=row: (-row[j], j))[:top_k]
        for row in logits.tolist()
    ]
    assert (values.dtype, ids.dtype) == (torch.float32, torch.int64)
    assert ids.tolist() == want
    # Bit for bit, so that zeros keep their sign.
    chosen = logits.gather(1, torch.tensor(want))
    assert torch.equal(values.view(torch.int32), chosen.view(torch.int32))


@pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("ties", [False, True])
def test_exact_at_tile_borders(tokens: int, ties: bool) -> None:
    assert_exact(logits_of(tokens, 256, ties=ties), 9)


@pytest.mark.parametrize("vocabulary", [1, 5, 8, 9, 64, 1021, 2020])
@pytest.mark.parametrize("top_k", [1, 5, 8, 50])
def test_any_vocabulary_and_any_number(vocabulary: int, top_k: int) -> None:
    assert_exact(logits_of(3, vocabulary, ties=True), min(top_k, vocabulary))


@pytest.mark.parametrize("vocabulary", [8191, 8193, 8200, 16400])
def test_rotation_over_several_tiles(vocabulary: int) -> None:
    assert_exact(logits_of(2, vocabulary, ties=True), 20)
    tied = torch.zeros(1, vocabulary)
    tied[0, [vocabulary - 1, 8000, 3]] = 1.0
    assert vocab_topk(tied, 5, numerics=NUMERICS)[1].tolist() == [[3, 8000, vocabulary - 1, 0, 1]]


@pytest.mark.parametrize("tokens", [1, 5])
def test_the_real_vocabulary(tokens: int) -> None:
    assert_exact(logits_of(tokens, 129280, ties=True), 50)


def test_masked_words_fill_up_a_row_by_id() -> None:
    logits = torch.full((2, 64), -torch.inf)
    logits[0, 40], logits[0, 7] = 1.0, -2.0
    assert_exact(logits, 6)


def test_the_first_is_the_argmax_and_shards_merge_to_the_whole() -> None:
    logits = logits_of(4, 512, ties=True)
    values, ids = vocab_topk(logits, 8, numerics=NUMERICS)
    assert torch.equal(ids[:, 0], logits.argmax(1))
    parts = [vocab_topk(logits[:, i : i + 128], 8, numerics=NUMERICS) for i in range(0, 512, 128)]
    merged = torch.cat([part[0] for part in parts], 1)
    order = torch.sort(merged, dim=1, descending=True, stable=True)
    shard_ids = torch.cat([part[1] + 128 * i for i, part in enumerate(parts)], 1)
    assert torch.equal(order.values[:, :8], values)
    assert torch.equal(shard_ids.gather(1, order.indices[:, :8]), ids)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_result_and_are_not_modified(layout: str) -> None:
    logits = logits_of(4, 96)
    view = layouts_of(logits)[layout]
    assert_exact(view, 5)
    assert torch.equal(view, logits)


@pytest.mark.parametrize("tokens", [1, 2, 129])
def test_two_cores_give_the_result_of_one(tokens: int) -> None:
    with lnc_selected(2):
        assert_exact(logits_of(tokens, 512, ties=True), 9)


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    values, ids = vocab_topk(logits_of(0, 64), 5, numerics=NUMERICS)
    assert values.shape == ids.shape == (0, 5)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="top_k 65"):
        vocab_topk(logits_of(1, 64), 65, numerics=NUMERICS)
    with pytest.raises(KernelError, match="top_k is 1025") as found:
        vocab_topk(logits_of(1, 2048), 1025, numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="fp8_max 240"):
        vocab_topk(logits_of(1, 64), 5, numerics=FAST)
