"""Seeded runs of right kernels: what does not PASS in them is a false alarm (measurement.md §1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.case import Case
from harness.core.errors import UsageError
from harness.core.results import ParityResult
from harness.core.status import OpStatus

__all__ = ["clean_cases", "false_alarms"]

# Seeds of clean runs start above every seed of a suite.
_FIRST_SEED = 100_000
_MOST_RUNS = 10_000


def clean_cases(cases: Sequence[Case], num_runs: int, seed: int) -> list[Case]:
    """Run i judges one case of each op, in turn, with values that no run before it had.

    Raises:
        UsageError: num_runs outside 1..10000, or a negative seed.
    """
    if not 1 <= num_runs <= _MOST_RUNS or seed < 0:
        raise UsageError(f"{num_runs} clean runs from seed {seed}: choose 1..{_MOST_RUNS}, 0 on")
    by_op: dict[str, list[Case]] = {}
    for case in cases:
        by_op.setdefault(case.op, []).append(case)
    first = _FIRST_SEED + seed * _MOST_RUNS
    return [
        # A probe asks for a golden that differs from its nulls, which not every draw gives.
        replace(of_op[run % len(of_op)], seed=first + run, probe=False)
        for run in range(num_runs)
        for of_op in by_op.values()
    ]


def false_alarms(cases: Sequence[Case], results: Sequence[ParityResult]) -> tuple[int, int]:
    """(cases that are not PASS, runs that hold one)."""
    alarmed = [
        case.seed
        for case, result in zip(cases, results, strict=True)
        if result.status is not OpStatus.PASS
    ]
    return len(alarmed), len(set(alarmed))
