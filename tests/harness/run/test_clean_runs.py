"""Clean runs draw new values for every run, and an alarm in one is counted."""

from __future__ import annotations

import pytest
import torch

from harness.core.case import Case
from harness.core.errors import UsageError
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.clean_runs import clean_cases, false_alarms
from harness.run.compare import compare_exact

SAME = (compare_exact("ids", torch.arange(3), torch.arange(3)),)
CASES = [
    Case("rms_norm", {"T": 5, "d": 64}, probe=True),
    Case("rms_norm", {"T": 6, "d": 64}),
    Case("vocab_argmax", {"T": 2, "V": 9}),
]


def test_each_run_has_one_case_of_each_op_in_turn_and_values_of_its_own() -> None:
    drawn = clean_cases(CASES, 4, 0)
    assert len(drawn) == 8
    assert len({case.case_id for case in drawn}) == 8
    assert [case.axes["T"] for case in drawn if case.op == "rms_norm"] == [5, 6, 5, 6]
    assert not any(case.probe for case in drawn)
    others = {case.seed for case in clean_cases(CASES, 4, 1)}
    assert others.isdisjoint({case.seed for case in drawn})


def test_alarms_are_counted_by_case_and_by_run() -> None:
    drawn = clean_cases(CASES, 3, 0)
    statuses = [OpStatus.PASS] * 6
    statuses[2] = statuses[3] = OpStatus.RUN_ERROR
    results = [
        ParityResult(
            case.case_id,
            case.op,
            "interpret",
            status,
            "why",
            errors=SAME if status is OpStatus.PASS else (),
        )
        for case, status in zip(drawn, statuses, strict=True)
    ]
    assert false_alarms(drawn, results) == (2, 1)


@pytest.mark.parametrize(("runs", "seed"), [(0, 0), (10_001, 0), (5, -1)])
def test_impossible_numbers_are_refused(runs: int, seed: int) -> None:
    with pytest.raises(UsageError):
        clean_cases(CASES, runs, seed)
