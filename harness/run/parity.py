"""A suite of cases under one backend: `run_suite` over workers, `run_cases` in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.core.case import Case
from harness.core.errors import UsageError
from harness.core.ops import op_named
from harness.core.results import ParityResult
from harness.run.isolate import Limits
from harness.run.judge import Judge, ToleranceTable
from harness.run.parity_targets import ParityTargets
from harness.run.parity_workers import ParityWorkers
from harness.run.verdict import needs_tolerance

__all__ = ["OnResult", "ParityTargets", "check_suite", "run_cases", "run_suite"]

OnResult = Callable[[ParityResult], None]


def check_suite(cases: Sequence[Case], tolerances: ToleranceTable) -> None:
    """Refuse, before any work, a suite that could not be judged or recorded.

    Raises:
        UsageError: no case, an unknown op, two cases of one id, or an output without a budget.
    """
    if not cases:
        raise UsageError("the suite has no case; choose other ops or another tier")
    twice = [case_id for case_id, n in Counter(c.case_id for c in cases).items() if n > 1]
    if twice:
        raise UsageError(f"case id {twice[0]} occurs twice: records of one id replace each other")
    for op in sorted({case.op for case in cases}):
        for output in op_named(op).outputs:
            budget = tolerances.get(op, {}).get(output.name)
            if budget is None and needs_tolerance(op_named(op), output.name):
                raise UsageError(f"op {op}: output {output.name} has no tolerance in the suite")


def run_cases(
    judge: Judge, cases: Sequence[Case], on_result: OnResult | None = None
) -> list[ParityResult]:
    """Every case in this process: no limits, for debuggers and tests.

    Raises:
        UsageError: see `check_suite`; or a case whose inputs cannot be built.
    """
    check_suite(cases, judge.tolerances)
    results = []
    for case in cases:
        results.append(judge.run(case))
        if on_result is not None:
            on_result(results[-1])
    return results


def run_suite(
    cases: Sequence[Case],
    tolerances: ToleranceTable,
    targets: ParityTargets,
    *,
    backend: str = "interpret",
    jobs: int = 1,
    limits: Limits | None = None,
    repeat: int = 1,
    bundle_root: Path | None = None,
    on_result: OnResult | None = None,
    environments: Sequence[Mapping[str, str]] = (),
) -> list[ParityResult]:
    """Every case in worker processes under limits; results in the order of the cases.

    Args:
        jobs: workers; each has one thread.
        repeat: calls of the op whose outputs must be equal byte for byte; where it is above 1
            another process must give the same bytes too.
        bundle_root: where failing cases leave what replays them.
        on_result: called in this process for each result, in the order they come.
        environments: one a worker, see `WorkerPool`; a device's workers get a core each.

    Raises:
        UsageError, MissingEvidenceError: see `check_suite` and `ParityTargets.judge`.
    """
    check_suite(cases, tolerances)
    workers = ParityWorkers(
        targets,
        tolerances,
        backend=backend,
        jobs=jobs,
        limits=limits or Limits(),
        repeat=repeat,
        bundle_root=bundle_root,
        environments=environments,
    )
    results: dict[int, ParityResult] = {}
    with workers:
        for index, result in workers.judge(cases):
            results[index] = result
            if on_result is not None:
                on_result(result)
        in_order = [results[index] for index in range(len(cases))]
        workers.shrink(cases, in_order)
    return in_order
