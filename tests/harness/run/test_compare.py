"""The budget's numbers, computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from harness.core.case import Tolerance
from harness.run.compare import NO_BUDGET, compare_exact, compare_within_budget
from harness.run.ulp import UlpHistogram, ulp_distance

ROWS = Tolerance(c=2.0, c_max=4.0, floor=0.5, slice_axes=(0,), reason="hand-computed")


def _f64(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_worst_slice_decides_by_error_over_budget() -> None:
    golden = _f64([[0.0, 0.0], [100.0, 100.0]])
    baseline = _f64([[1.0, 1.0], [110.0, 110.0]])  # RMS(b) = max(b) = 1 and 10
    candidate = _f64([[3.0, 4.0], [130.0, 100.0]])
    errors = compare_within_budget("y", candidate, golden, baseline, ROWS)
    # Row 0: RMS 3.5355 over 2 * 1 + 0.5; row 1: RMS 21.2132 over 2 * 10 + 0.5.
    assert errors.budget_ratio == pytest.approx(math.sqrt(12.5) / 2.5)
    assert errors.worst_slice == (0,)
    assert errors.worst_index == (0, 1)
    assert (errors.worst_kernel_value, errors.worst_golden_value) == (4.0, 0.0)
    assert errors.max_abs == 30.0
    assert errors.rms == pytest.approx(math.sqrt((9 + 16 + 900) / 4))
    assert errors.baseline_rms == pytest.approx(math.sqrt((1 + 1 + 100 + 100) / 4))
    assert errors.baseline_max == 10.0
    assert errors.max_rel == pytest.approx(0.3)
    assert errors.num_compared == 4


def test_a_single_large_error_breaks_the_maximum_where_the_rms_would_allow_it() -> None:
    golden, baseline = torch.zeros(1, 10_000).double(), torch.full((1, 10_000), 0.25).double()
    candidate = torch.zeros(1, 10_000).double()
    candidate[0, 77] = 3.0  # RMS 0.03 of 1.0 allowed, maximum 3.0 of 1.5
    errors = compare_within_budget("y", candidate, golden, baseline, ROWS)
    assert errors.budget_ratio == pytest.approx(2.0)
    assert errors.worst_index == (0, 77)


@pytest.mark.parametrize(
    ("axes", "worst_slice", "num_reduced"),
    [((0,), (1,), 6), ((2,), (1,), 6), ((0, 2), (1, 1), 3), ((-1, 0), (1, 1), 3), ((), (), 12)],
)
def test_slices_are_the_named_axes(
    axes: tuple[int, ...], worst_slice: tuple[int, ...], num_reduced: int
) -> None:
    golden = torch.zeros(2, 3, 2).double()
    candidate = golden.clone()
    candidate[1, 2, 1] = 8.0
    tolerance = Tolerance(c=1, c_max=1, floor=1.0, slice_axes=axes, reason="one error of 8")
    errors = compare_within_budget("y", candidate, golden, golden, tolerance)
    assert errors.budget_ratio == 8.0  # the maximum over the floor; its RMS is smaller
    assert errors.rms == pytest.approx(8 / math.sqrt(12))
    assert errors.worst_slice == worst_slice
    assert errors.worst_index == (1, 2, 1)
    # A baseline with the same single error allows the maximum, and the RMS of its slice.
    baseline = candidate / 4
    errors = compare_within_budget("y", candidate, golden, baseline, tolerance)
    rms = 8 / math.sqrt(num_reduced)
    assert errors.budget_ratio == pytest.approx(max(8 / 3, rms / (rms / 4 + 1)))


def test_an_error_without_any_budget_is_no_infinity() -> None:
    tolerance = Tolerance(c=1, c_max=1, floor=0.0, slice_axes=(0,), reason="no floor")
    golden = _f64([[1.0], [2.0]])
    exact = compare_within_budget("y", golden, golden, golden, tolerance)
    assert exact.budget_ratio == 0.0
    off = compare_within_budget("y", _f64([[1.0], [2.5]]), golden, golden, tolerance)
    assert off.budget_ratio == NO_BUDGET
    assert off.worst_slice == (1,)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(5)
    golden = torch.randn(7, 33, generator=generator, dtype=torch.float64)
    baseline, candidate = golden.bfloat16(), (golden * 1.01).bfloat16()
    whole = compare_within_budget("y", candidate, golden, baseline, ROWS)
    monkeypatch.setattr("harness.run.compare._CHUNK", 10)
    parts = compare_within_budget("y", candidate, golden, baseline, ROWS)
    assert parts.ulp_histogram == whole.ulp_histogram
    assert parts.worst_index == whole.worst_index
    assert parts.budget_ratio == pytest.approx(whole.budget_ratio, rel=1e-12)
    assert parts.cosine == pytest.approx(whole.cosine, rel=1e-12)
    assert parts.below_golden_share == whole.below_golden_share


def test_the_cosine_is_of_mean_removed_data() -> None:
    golden = _f64([[101.0, 102.0, 103.0]])
    same = compare_within_budget("y", golden * 2, golden, golden, ROWS)
    against = compare_within_budget("y", 300 - golden, golden, golden, ROWS)
    flat = compare_within_budget("y", torch.full_like(golden, 7), golden, golden, ROWS)
    assert same.cosine == pytest.approx(1.0)
    assert against.cosine == pytest.approx(-1.0)
    assert flat.cosine is None


def test_the_share_below_the_golden_counts_only_what_differs() -> None:
    golden = _f64([[1.0, 1.0, 1.0, 1.0, 1.0]])
    candidate = _f64([[1.0, 0.9, 0.8, 0.7, 1.1]])
    assert compare_within_budget("y", candidate, golden, golden, ROWS).below_golden_share == 0.75
    assert compare_within_budget("y", golden, golden, golden, ROWS).below_golden_share is None


def test_places_that_are_not_finite_add_no_error() -> None:
    golden = _f64([[1.0, float("inf"), float("nan"), 2.0]])
    candidate = _f64([[1.0, float("inf"), float("nan"), 2.5]])
    errors = compare_within_budget("y", candidate, golden, golden, ROWS)
    assert errors.max_abs == 0.5
    assert errors.worst_index == (0, 3)


def test_nothing_to_compare_is_no_success() -> None:
    empty = torch.zeros(0, 4).double()
    assert compare_within_budget("y", empty, empty, empty, ROWS).num_compared == 0
    assert compare_within_budget("y", empty, empty, empty, ROWS).budget_ratio > 1
    assert compare_exact("ids", empty, empty).budget_ratio > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_ulp_distances_count_representable_values(dtype: torch.dtype) -> None:
    start = torch.tensor([-1.0, -0.0, 0.0, 1.0], dtype=dtype)
    moved = start.clone()
    for _ in range(3):
        moved = torch.nextafter(moved, torch.full_like(moved, 10.0))
    assert ulp_distance(moved, start.double()).tolist() == [3, 3, 3, 3]
    assert ulp_distance(torch.tensor([-0.0], dtype=dtype), _f64([0.0])).tolist() == [0]


def test_the_histogram_has_five_classes_and_leaves_out_what_is_not_finite() -> None:
    histogram = UlpHistogram()
    one = 1.0
    steps = [0, 1, 2, 3, 10, 11]
    ulp = 2.0**-23
    candidate = torch.tensor([one + k * ulp for k in steps] + [float("inf")])
    histogram.add(candidate, _f64([one] * 6 + [float("inf")]))
    assert histogram.counts() == {"0": 1, "1": 1, "2": 1, "3-10": 2, ">10": 1}


def test_exact_outputs_are_compared_bit_for_bit() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    assert compare_exact("ids", ids, ids).budget_ratio == 0.0
    errors = compare_exact("ids", torch.tensor([[1, 2], [3, 9]]), ids)
    assert errors.num_mismatched == 1
    assert errors.budget_ratio == NO_BUDGET
    assert errors.worst_index == (1, 1)
    assert (errors.worst_kernel_value, errors.worst_golden_value) == (9.0, 4.0)


def test_a_zero_of_the_other_sign_is_another_bit_pattern() -> None:
    errors = compare_exact("y", torch.tensor([-0.0]), torch.tensor([0.0]))
    assert errors.num_mismatched == 1


def test_equal_nans_match_and_masks_are_compared() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert compare_exact("y", nan, nan).num_mismatched == 0
    masks = torch.tensor([True, False]), torch.tensor([True, True])
    assert compare_exact("mask", *masks).num_mismatched == 1
