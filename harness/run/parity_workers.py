"""Workers that judge cases: they stay for many cases and are replaced when one ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch

from harness.core.case import Case
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.bundle import bundle_directory, write_bundle
from harness.run.candidate import output_digest
from harness.run.golden import kernel_numerics
from harness.run.inputs import build_inputs
from harness.run.isolate import Crashed, Finished, Limits, Outcome, Raised, TimedOut, WorkerPool
from harness.run.judge import ToleranceTable
from harness.run.parity_targets import ParityTargets, table_at

__all__ = ["ParityWorkers"]


@dataclass(frozen=True, slots=True)
class _Task:
    """Judge a case, or shrink one that failed with a status."""

    case: Case
    shrink_from: OpStatus | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """A result with the hash of the output bytes, to compare processes."""

    result: ParityResult
    digest: str


@dataclass(slots=True)
class ParityWorkers:
    """A pool of judges. A context manager; leaving it ends them.

    Args: see `harness.run.parity.run_suite`.
    """

    targets: ParityTargets
    tolerances: ToleranceTable
    backend: str = "interpret"
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    repeat: int = 1
    bundle_root: Path | None = None
    environments: Sequence[Mapping[str, str]] = ()
    _pool: WorkerPool[_Task, _Answer] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._pool = self._new_pool()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.close()

    def judge(self, cases: Sequence[Case]) -> Iterator[tuple[int, ParityResult]]:
        """(index, result) of every case, in the order they end.

        Raises:
            UsageError: a case cannot be built.
            MissingEvidenceError: the backend is not there.
        """
        tasks = [_Task(case) for case in cases]
        if self.repeat == 1:
            for index, outcome in self._pool.run(tasks):
                yield index, self._answer_of(cases[index], outcome).result
            return
        first = {index: self._answer_of(cases[index], o) for index, o in self._pool.run(tasks)}
        self._pool.close()  # the others take over its cores
        with self._new_pool() as others:
            for index, outcome in others.run(tasks):
                second = self._answer_of(cases[index], outcome)
                yield index, _same_bytes(first[index], second)

    def shrink(self, cases: Sequence[Case], results: Sequence[ParityResult]) -> None:
        """Shrink one failing case an op and status, in workers, so that a crash there loses
        nothing but the smaller shape. A case that hangs is left as it is."""
        chosen: dict[tuple[str, OpStatus], _Task] = {}
        for case, result in zip(cases, results, strict=True):
            if result.bundle and result.status is not OpStatus.TIMEOUT:
                chosen.setdefault((case.op, result.status), _Task(case, result.status))
        for _ in self._pool.run(list(chosen.values())):
            pass  # the bundle is what remains

    def _new_pool(self) -> WorkerPool[_Task, _Answer]:
        setup = partial(
            _work,
            self.targets,
            self.tolerances,
            backend=self.backend,
            repeat=self.repeat,
            bundle_root=self.bundle_root,
        )
        # Not the kernels: which runtime they load is settled when a worker selects its backend.
        reference_module = self.targets.reference.partition(":")[0]
        preload = ("torch", "harness.run.judge", reference_module)
        return WorkerPool(setup, self.jobs, self.limits, preload, self.environments)

    def _answer_of(self, case: Case, outcome: Outcome[_Answer]) -> _Answer:
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
        result = ParityResult(case.case_id, case.op, self.backend, status, message)
        if self.bundle_root is None:
            return _Answer(result, "")
        numerics = kernel_numerics(case, table_at(self.targets.kernels).fp8_max)
        arguments = build_inputs(case, fp8_max=numerics.fp8_max)
        directory = bundle_directory(self.bundle_root, case)
        write_bundle(directory, case, arguments, None, (), result, found_in=case.case_id)
        return _Answer(replace(result, bundle=str(directory)), "")


def _work(
    targets: ParityTargets,
    tolerances: ToleranceTable,
    *,
    backend: str,
    repeat: int,
    bundle_root: Path | None,
) -> Callable[[_Task], _Answer]:
    """In a worker: what does a task."""
    torch.set_num_threads(1)
    judge = targets.judge(tolerances, backend=backend, repeat=repeat, bundle_root=bundle_root)

    def work(task: _Task) -> _Answer:
        case = task.case
        if task.shrink_from is not None:
            case = judge.shrink(case, task.shrink_from)
            return _Answer(judge.trial(case).result, "")
        trial = judge.trial(case)
        return _Answer(judge.kept(trial, case), output_digest(trial.outputs))

    return work


def _same_bytes(first: _Answer, second: _Answer) -> ParityResult:
    """The first result, unless another process gave other bytes."""
    if first.result.status is not OpStatus.PASS or second.digest == first.digest:
        return first.result
    message = "another process gives other bytes on equal inputs"
    if second.result.status is not OpStatus.PASS:
        message = f"another process ends with {second.result.status.value}"
    return replace(first.result, status=OpStatus.RUN_ERROR, message=message, errors=())
