"""Greedy choice on the bundled interpreter: exact ids, the lowest on ties."""

from __future__ import annotations

import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.vocab_argmax_nki import vocab_argmax
from tests.kernels.formulas import NUMERICS, layouts_of


def logits_of(tokens: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, vocabulary, generator=torch.Generator().manual_seed(seed))


def lowest_of_the_largest(logits: torch.Tensor) -> list[int]:
    rows = logits.tolist()
    return [row.index(max(row)) for row in rows]


def assert_exact(logits: torch.Tensor) -> None:
    ids = vocab_argmax(logits, numerics=NUMERICS)
    assert ids.dtype == torch.int64
    assert ids.tolist() == lowest_of_the_largest(logits)


@pytest.mark.parametrize("tokens", [1, 2, 5, 127, 128, 129])
@pytest.mark.parametrize("vocabulary", [1, 7, 8, 9, 64, 512, 1021])
def test_exact_at_tile_borders(tokens: int, vocabulary: int) -> None:
    assert_exact(logits_of(tokens, vocabulary))


@pytest.mark.parametrize("vocabulary", [8191, 8192, 8193, 8199, 8200, 16386])
def test_vocabularies_longer_than_a_chunk(vocabulary: int) -> None:
    assert_exact(logits_of(3, vocabulary))
    tied = torch.zeros(2, vocabulary)
    tied[0, -1] = tied[0, vocabulary // 2] = 1.0
    tied[1, -1] = 1.0
    assert vocab_argmax(tied, numerics=NUMERICS).tolist() == [vocabulary // 2, vocabulary - 1]


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_real_vocabulary_and_a_rank_of_it(tokens: int) -> None:
    assert_exact(logits_of(tokens, 129280))
    assert_exact(logits_of(tokens, 2020))


@pytest.mark.parametrize("vocabulary", [512, 129280])
def test_ties_take_the_lowest_id_across_partitions(vocabulary: int) -> None:
    step = vocabulary // 4
    logits = torch.zeros(3, vocabulary)
    logits[0, [step - 1, step, 3 * step]] = 2.0
    logits[1, [vocabulary - 1, 1]] = 2.0
    assert vocab_argmax(logits, numerics=NUMERICS).tolist() == [step - 1, 1, 0]


def test_many_ties_of_rounded_logits() -> None:
    assert_exact(logits_of(50, 512).mul(2).round())


def test_zeros_of_both_signs_are_equal() -> None:
    logits = torch.full((2, 64), -1.0)
    logits[0, 9], logits[0, 40] = -0.0, 0.0
    logits[1, 9], logits[1, 40] = 0.0, -0.0
    assert vocab_argmax(logits, numerics=NUMERICS).tolist() == [9, 9]


def test_a_difference_below_bf16_decides() -> None:
    logits = torch.full((1, 512), 1.0)
    logits[0, 300] = 1.0 + 2.0**-23
    assert vocab_argmax(logits, numerics=NUMERICS).tolist() == [300]


@pytest.mark.parametrize("vocabulary", [5, 512])
def test_masked_vocabularies(vocabulary: int) -> None:
    logits = torch.full((2, vocabulary), -torch.inf)
    logits[0, vocabulary - 1] = -3e38
    assert vocab_argmax(logits, numerics=NUMERICS).tolist() == [vocabulary - 1, 0]


@pytest.mark.parametrize("tokens", [1, 2, 129])
@pytest.mark.parametrize("vocabulary", [8, 24, 512, 2020])
def test_both_cores_of_lnc2_give_the_ids_of_one(tokens: int, vocabulary: int) -> None:
    with lnc_selected(2):
        assert_exact(logits_of(tokens, vocabulary))
        assert_exact(logits_of(tokens, vocabulary).round())


@pytest.mark.parametrize("place", [0, 255, 256, 511])
def test_a_tie_between_the_cores_goes_to_the_first(place: int) -> None:
    logits = torch.zeros(1, 512)
    logits[0, place] = logits[0, 511] = 1.0
    with lnc_selected(2):
        assert vocab_argmax(logits, numerics=NUMERICS).tolist() == [place]


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_ids_and_are_not_modified(layout: str) -> None:
    logits = logits_of(4, 96)
    view = layouts_of(logits)[layout]
    assert vocab_argmax(view, numerics=NUMERICS).tolist() == lowest_of_the_largest(logits)
    assert torch.equal(view, logits)


def test_no_rows_give_no_ids_without_a_launch() -> None:
    reset_counters()
    assert vocab_argmax(logits_of(0, 64), numerics=NUMERICS).shape == (0,)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="no column"):
        vocab_argmax(logits_of(2, 0), numerics=NUMERICS)
    with pytest.raises(KernelError, match="logits has dtype"):
        vocab_argmax(logits_of(2, 8).bfloat16(), numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        vocab_argmax(logits_of(2, 8), numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
