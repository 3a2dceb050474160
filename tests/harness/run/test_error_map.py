"""A map shows where an output differs, in cells whose values are computed by hand."""

from __future__ import annotations

import math
from typing import Any

import torch

from harness.core.numerics import Numerics
from harness.core.op_table import OpTable
from harness.core.status import OpStatus
from harness.run.error_map import MAX_COLUMNS, MAX_ROWS, error_map
from harness.run.judge import Judge
from references.op_table import TABLE
from tests.harness.run.budgets import TOLERANCES
from tests.harness.run.problems import small_case


def test_a_missed_tail_is_the_last_column_and_nothing_else() -> None:
    golden = torch.arange(4 * 8, dtype=torch.float64).reshape(4, 8) + 1
    wrong = golden.clone()
    wrong[:, 7] = 0
    found = error_map(wrong, golden, exact=False)
    assert found is not None
    assert (found.shape, found.measure) == ((4, 8), "relative")
    for line, row in enumerate(found.cells):
        assert row[:7] == (0.0,) * 7
        # The error is the golden itself: 8, 16, 24, 32 of at most 32.
        assert row[7] == (line + 1) / 4


def test_exact_outputs_tell_the_share_of_a_cell_that_differs() -> None:
    golden = torch.zeros(2, MAX_COLUMNS * 4, dtype=torch.int64)
    wrong = golden.clone()
    wrong[1, 4:7] = 9
    found = error_map(wrong, golden, exact=True)
    assert found is not None
    assert found.measure == "share"
    assert found.cells[0] == (0.0,) * MAX_COLUMNS
    assert found.cells[1][1] == 3 / 4
    assert sum(found.cells[1]) == 3 / 4


def test_large_outputs_are_pooled_and_no_element_is_lost() -> None:
    golden = torch.zeros(3, 50, 100, dtype=torch.float64)
    wrong = golden.clone()
    wrong[2, 49, 99] = 1.0
    found = error_map(wrong, golden, exact=False)
    assert found is not None
    assert found.shape == (150, 100)
    assert (len(found.cells), len(found.cells[0])) == (MAX_ROWS, MAX_COLUMNS)
    assert found.cells[-1][-1] == 1.0
    assert sum(map(sum, found.cells)) == 1.0


def test_nan_on_one_side_is_the_worst_and_on_both_none() -> None:
    golden = torch.tensor([[1.0, math.nan, math.inf, 4.0]], dtype=torch.float64)
    wrong = torch.tensor([[math.nan, math.nan, math.inf, 4.5]], dtype=torch.float64)
    found = error_map(wrong, golden, exact=False)
    assert found is not None
    assert found.cells == ((1.0, 0.0, 0.0, 1.0),)


def test_what_has_no_element_or_another_shape_has_no_map() -> None:
    assert error_map(torch.zeros(0, 4), torch.zeros(0, 4), exact=True) is None
    assert error_map(torch.zeros(2, 4), torch.zeros(4, 2), exact=True) is None
    scalar = error_map(torch.tensor(2.0), torch.tensor(1.0), exact=False)
    assert scalar is not None
    assert scalar.cells == ((1.0,),)


def test_a_case_that_fails_keeps_a_map_and_one_that_passes_keeps_none() -> None:
    """A swiglu whose last channel is never computed: the last cells of every row."""
    right = TABLE.ops["swiglu"]

    def without_last(*arguments: Any, numerics: Numerics) -> torch.Tensor:
        y = right(*arguments, numerics=numerics).clone()
        y[:, -1] = 0
        return y

    case = small_case("swiglu")
    good = Judge(TABLE, TABLE, TOLERANCES, "fake").run(case)
    bad = Judge(TABLE, OpTable({"swiglu": without_last}, 240), TOLERANCES, "fake").run(case)
    assert good.status is OpStatus.PASS
    assert good.error_maps == {}
    assert bad.status is OpStatus.OUT_OF_TOLERANCE
    (found,) = bad.error_maps.values()
    assert max(max(line) for line in found.cells) == 1.0
    assert max(line[-1] for line in found.cells) == 1.0
    assert all(value < 0.1 for line in found.cells for value in line[:-1])
