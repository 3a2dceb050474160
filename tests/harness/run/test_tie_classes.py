"""A selection is judged as a set, with freedom only inside the tie at its cut."""

from __future__ import annotations

import pytest
import torch

from harness.core.numerics import GOLDEN
from harness.run.inputs import build_inputs
from harness.run.tie_classes import RouterSelection, selection_faults
from references.op_table import TABLE
from tests.harness.run.problems import small_case

SCORES = torch.tensor([[5.0, 3.0, 3.0000001, 1.0, 3.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("ids", "is_fault"),
    [
        ([0, 2], False),
        ([2, 0], False),  # a set: order does not matter
        ([0, 1], False),  # within the uncertainty of the cut
        ([0, 4], True),  # equal to id 1, which comes first
        ([0, 3], True),  # outside the tie class
        ([1, 2], True),  # id 0 must be in
        ([0, 0], True),
        ([0, 5], True),
        ([0, -1], True),
    ],
)
def test_ids_within_the_uncertainty_of_the_cut_may_stand_for_one_another(
    ids: list[int], is_fault: bool
) -> None:
    faults = selection_faults(SCORES, torch.tensor([ids]), torch.tensor([[1e-6]]))
    assert faults.tolist() == [is_fault]


def test_without_uncertainty_only_the_best_pass() -> None:
    none = torch.zeros(1, 1)
    assert selection_faults(SCORES, torch.tensor([[0, 1]]), none).tolist() == [True]
    assert selection_faults(SCORES, torch.tensor([[0, 2]]), none).tolist() == [False]


def test_the_uncertainty_of_router_scores_is_of_the_size_of_fp32_rounding() -> None:
    selection = RouterSelection.of(build_inputs(small_case("router")))
    assert 1e-8 < float(selection.uncertainty.min()) <= float(selection.uncertainty.max()) < 1e-5


def test_a_reference_that_does_not_follow_the_definition_is_noticed() -> None:
    arguments = build_inputs(small_case("router"))
    selection = RouterSelection.of(arguments)
    ids, weights = TABLE.router(*arguments.in_float64().positional(), numerics=GOLDEN)
    assert selection.disagreement((ids, weights)) == ""
    assert "weights are not those" in selection.disagreement((ids, weights * 1.001))
    assert "not the best" in selection.disagreement(((ids + 1) % 16, weights))
