"""Shrinking keeps the failure and loses the rest of the shape."""

from __future__ import annotations

from pathlib import Path

import torch

from harness.core.case import Case
from harness.core.op_table import OpTable
from harness.core.status import OpStatus
from harness.run.bundle import read_bundle
from harness.run.judge import Judge
from harness.run.shrink import shrunk
from references.op_table import TABLE
from tests.harness.run.budgets import TOLERANCES
from tests.harness.run.problems import small_case

LARGE = Case("rms_norm", {"T": 300, "d": 4096})


def test_an_axis_the_failure_does_not_need_becomes_1() -> None:
    smallest = shrunk(LARGE, lambda case: case.axes["T"] >= 130)
    assert dict(smallest.axes) == {"T": 130, "d": 1}


def test_lengths_stay_where_only_whole_blocks_can_be_built() -> None:
    def still_fails(case: Case) -> bool:
        return case.axes["d"] % 32 == 0 and case.axes["d"] >= 96

    assert dict(shrunk(LARGE, still_fails).axes) == {"T": 1, "d": 96}


def test_a_failure_that_needs_everything_stays_as_it_is() -> None:
    assert shrunk(LARGE, lambda case: False) == LARGE


def test_tries_are_limited() -> None:
    tries: list[Case] = []

    def still_fails(case: Case) -> bool:
        tries.append(case)
        return case.axes["T"] > 200

    smallest = shrunk(LARGE, still_fails, most_tries=5)
    assert len(tries) == 5
    assert 200 < smallest.axes["T"] <= 300


def test_the_bundle_holds_the_smallest_failing_shape(tmp_path: Path) -> None:
    def wrong_from_row_three(x: torch.Tensor, *rest: object, numerics: object) -> torch.Tensor:
        y: torch.Tensor = TABLE.rms_norm(x, *rest, numerics=numerics)
        y[3:] = 0
        return y

    kernels = OpTable({"rms_norm": wrong_from_row_three})
    judge = Judge(TABLE, kernels, TOLERANCES, "fake", bundle_root=tmp_path)
    case = small_case("rms_norm", axes={"T": 50, "d": 96})
    first = judge.run(case)
    assert read_bundle(Path(first.bundle)).case == case
    smallest = judge.shrink(case, OpStatus.OUT_OF_TOLERANCE)
    assert dict(smallest.axes) == {"T": 4, "d": 1}
    bundle = read_bundle(Path(first.bundle))
    assert bundle.case == smallest
    assert f'"found_in": "{case.case_id}"' in (Path(first.bundle) / "case.json").read_text()
    assert judge.trial(bundle.case, bundle.arguments).result.status is first.status
