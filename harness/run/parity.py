"""A suite of cases under one backend: `run_suite`, alone in this process or over workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from harness.core.case import Case
from harness.core.errors import UsageError
from harness.core.op_table import OpTable
from harness.core.ops import op_named
from harness.core.registry import resolve_target
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.bundle import bundle_directory, write_bundle
from harness.run.golden import kernel_numerics
from harness.run.inputs import build_inputs
from harness.run.isolate import Crashed, Finished, Limits, Outcome, Raised, TimedOut, WorkerPool
from harness.run.judge import Judge, ToleranceTable
from harness.run.verdict import needs_tolerance

__all__ = ["OnResult", "ParityTargets", "check_suite", "run_cases", "run_suite"]

OnResult = Callable[[ParityResult], None]


@dataclass(frozen=True, slots=True)
class ParityTargets:
    """Where a worker finds what it judges with, as target texts ("package.module:object").

    Attributes:
        reference, kernels: OpTables; the kernels' may be partial.
        select_backend: called with the backend's name before anything runs; "" for none.
        poison, counters: see harness.run.candidate.Candidate; "" for none.
    """

    reference: str
    kernels: str
    select_backend: str = ""
    poison: str = ""
    counters: str = ""

    def judge(
        self,
        tolerances: ToleranceTable,
        *,
        backend: str,
        repeat: int = 1,
        bundle_root: Path | None = None,
    ) -> Judge:
        """Import everything and select the backend.

        Raises:
            UsageError: a target is wrong.
            MissingEvidenceError: the backend is not there (from `select_backend`).
        """
        if self.select_backend:
            resolve_target(self.select_backend)(backend)
        return Judge(
            reference=_table(self.reference),
            kernels=_table(self.kernels),
            tolerances=tolerances,
            backend=backend,
            poison=resolve_target(self.poison) if self.poison else None,
            counters=resolve_target(self.counters) if self.counters else None,
            repeat=repeat,
            bundle_root=bundle_root,
        )


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
) -> list[ParityResult]:
    """Every case in worker processes under limits; results in the order of the cases.

    Args:
        jobs: workers; each has one thread.
        repeat: calls of the op whose outputs must be equal byte for byte.
        bundle_root: where failing cases leave what replays them.
        on_result: called in this process for each result, in the order they come.

    Raises:
        UsageError, MissingEvidenceError: see `check_suite` and `ParityTargets.judge`.
    """
    check_suite(cases, tolerances)
    setup = partial(
        _work, targets, tolerances, backend=backend, repeat=repeat, bundle_root=bundle_root
    )
    results: dict[int, ParityResult] = {}
    # Not the kernels: which runtime they load is settled when a worker selects its backend.
    preload = ("torch", "harness.run.judge", targets.reference.partition(":")[0])
    pool: WorkerPool[_Task, ParityResult] = WorkerPool(setup, jobs, limits or Limits(), preload)
    with pool:
        for index, outcome in pool.run([_Task(case) for case in cases]):
            result = _result_of(cases[index], outcome, targets, backend, bundle_root)
            results[index] = result
            if on_result is not None:
                on_result(result)
        in_order = [results[index] for index in range(len(cases))]
        _shrink_failures(pool, cases, in_order)
    return in_order


@dataclass(frozen=True, slots=True)
class _Task:
    """Judge a case, or shrink one that failed with a status."""

    case: Case
    shrink_from: OpStatus | None = None


def _shrink_failures(
    pool: WorkerPool[_Task, ParityResult], cases: Sequence[Case], results: Sequence[ParityResult]
) -> None:
    """Shrink one failing case an op and status, in workers, so that a crash there loses nothing
    but the smaller shape. Cases that ended their worker are left as they are."""
    chosen: dict[tuple[str, OpStatus], _Task] = {}
    for case, result in zip(cases, results, strict=True):
        if result.bundle and result.status is not OpStatus.TIMEOUT:
            chosen.setdefault((case.op, result.status), _Task(case, result.status))
    for _ in pool.run(list(chosen.values())):
        pass  # the bundle is what remains


def _work(
    targets: ParityTargets,
    tolerances: ToleranceTable,
    *,
    backend: str,
    repeat: int,
    bundle_root: Path | None,
) -> Callable[[_Task], ParityResult]:
    """In a worker: what does a task."""
    torch.set_num_threads(1)
    judge = targets.judge(tolerances, backend=backend, repeat=repeat, bundle_root=bundle_root)

    def work(task: _Task) -> ParityResult:
        if task.shrink_from is None:
            return judge.run(task.case)
        return judge.trial(judge.shrink(task.case, task.shrink_from)).result

    return work


def _result_of(
    case: Case,
    outcome: Outcome[ParityResult],
    targets: ParityTargets,
    backend: str,
    bundle_root: Path | None,
) -> ParityResult:
    """A result also where the worker could not give one."""
    match outcome:
        case Finished(value):
            return value
        case Raised():
            raise outcome.as_error()
        case TimedOut(message):
            status = OpStatus.TIMEOUT
        case Crashed(message):
            status = OpStatus.RUN_ERROR
    result = ParityResult(case.case_id, case.op, backend, status, message)
    if bundle_root is None:
        return result
    numerics = kernel_numerics(case, _table(targets.kernels).fp8_max)
    arguments = build_inputs(case, fp8_max=numerics.fp8_max)
    directory = bundle_directory(bundle_root, case)
    bundle = write_bundle(directory, case, arguments, None, (), result, found_in=case.case_id)
    return replace(result, bundle=str(bundle))


def _table(target: str) -> OpTable:
    table = resolve_target(target)
    if not isinstance(table, OpTable):
        raise UsageError(f"target {target!r} is a {type(table).__name__}, not an OpTable")
    return table
