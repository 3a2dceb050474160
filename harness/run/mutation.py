"""How many mistakes in a kernel's instructions the judge catches (measurement.md §1).

A mutant changes one place of a kernel: an instruction dropped or run for the first tile only, an
operand moved by one element, operands, an operation or a constant exchanged. It is caught if any
case of its op is not PASS, equivalent if every output of every case keeps its bytes, and else it
survives: a finding about the suite.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from harness.core.case import Case
from harness.core.errors import VacuousError
from harness.core.registry import resolve_target
from harness.core.status import OpStatus
from harness.run.candidate import output_digest
from harness.run.isolate import Crashed, Finished, Limits, Outcome, Raised, TimedOut, WorkerPool
from harness.run.judge import Judge, ToleranceTable
from harness.run.parity_targets import ParityTargets

__all__ = ["Mutant", "MutantVerdict", "MutationHook", "caught_share", "run_mutants", "sampled"]

CAUGHT, SURVIVED, EQUIVALENT = "CAUGHT", "SURVIVED", "EQUIVALENT"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one kernel.

    Attributes:
        site: file and line of the instruction.
        change: what is done to it, e.g. "drop", "offset data1", "op0 maximum -> minimum".
    """

    op: str
    site: str
    instruction: str
    change: str

    def __str__(self) -> str:
        return f"{self.op} {self.site} {self.instruction}: {self.change}"


@dataclass(frozen=True, slots=True)
class MutantVerdict:
    """What became of a mutant: CAUGHT (by which case, with which status), SURVIVED, EQUIVALENT."""

    mutant: Mutant
    outcome: str
    caught_by: str = ""
    status: str = ""


class MutationHook(Protocol):
    """What an interpreter must offer."""

    def recorded(self, op: str, run: Callable[[], None]) -> tuple[Mutant, ...]:
        """Every mutant of the instructions that `run` executes, in order of first execution."""

    def applied(self, mutant: Mutant) -> AbstractContextManager[None]:
        """Launches inside the block run the mutant."""


def caught_share(verdicts: Sequence[MutantVerdict]) -> float:
    """Caught among those that are no equivalents.

    Raises:
        VacuousError: there is none.
    """
    counted = [verdict for verdict in verdicts if verdict.outcome != EQUIVALENT]
    if not counted:
        raise VacuousError("no mutant changes any output; nothing is known about the judge")
    return sum(verdict.outcome == CAUGHT for verdict in counted) / len(counted)


def sampled(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them, ops in turn so that a long kernel does not crowd out the others."""
    source = random.Random(seed)
    by_op: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_op.setdefault(mutant.op, []).append(mutant)
    for of_op in by_op.values():
        source.shuffle(of_op)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(by_op.values()):
        for of_op in by_op.values():
            if of_op and len(chosen) < count:
                chosen.append(of_op.pop())
    return chosen


def run_mutants(
    cases: Sequence[Case],
    tolerances: ToleranceTable,
    targets: ParityTargets,
    hook: str,
    *,
    count: int,
    seed: int,
    jobs: int = 1,
    limits: Limits | None = None,
    on_verdict: Callable[[MutantVerdict, int], None] | None = None,
) -> list[MutantVerdict]:
    """Record the kernels' instructions, draw mutants, judge each over the cases of its op.

    Args:
        hook: target text of a MutationHook.
        on_verdict: called with each verdict and the number of mutants.

    Raises:
        VacuousError: no mutant could be made, or a case fails without any mutation.
    """
    by_op: dict[str, tuple[Case, ...]] = {}
    for case in cases:
        by_op[case.op] = (*by_op.get(case.op, ()), case)
    setup = partial(_work, targets, tolerances, hook, by_op)
    preload = ("torch", "harness.run.judge", targets.reference.partition(":")[0])
    pool: WorkerPool[str | Mutant, tuple[Mutant, ...] | MutantVerdict]
    pool = WorkerPool(setup, jobs, limits or Limits(time_limit_s=60.0), preload)
    verdicts: list[MutantVerdict] = []
    with pool:
        mutants = sampled(list(_recorded(pool.run(list(by_op)))), count, seed)
        if not mutants:
            raise VacuousError("the kernels execute no instruction that could be changed")
        for index, outcome in pool.run(list(mutants)):
            verdicts.append(_verdict_of(mutants[index], outcome))
            if on_verdict is not None:
                on_verdict(verdicts[-1], len(mutants))
    return verdicts


def _recorded(
    outcomes: Iterator[tuple[int, Outcome[tuple[Mutant, ...] | MutantVerdict]]],
) -> Iterator[Mutant]:
    """In the order of the ops, whichever worker was faster."""
    answers: dict[int, tuple[Mutant, ...]] = {}
    for index, outcome in outcomes:
        match outcome:
            case Finished(value) if isinstance(value, tuple):
                answers[index] = value
            case Raised():
                raise outcome.as_error()
            case _:
                raise VacuousError(f"a kernel could not be recorded: {outcome}")
    for index in sorted(answers):
        yield from answers[index]


def _verdict_of(
    mutant: Mutant, outcome: Outcome[tuple[Mutant, ...] | MutantVerdict]
) -> MutantVerdict:
    """A mutant that hangs or kills its worker is caught: a suite would say TIMEOUT or RUN_ERROR."""
    match outcome:
        case Finished(value) if isinstance(value, MutantVerdict):
            return value
        case TimedOut(message):
            return MutantVerdict(mutant, CAUGHT, message, OpStatus.TIMEOUT.value)
        case Crashed(message):
            return MutantVerdict(mutant, CAUGHT, message, OpStatus.RUN_ERROR.value)
        case Raised():
            raise outcome.as_error()
    raise TypeError(f"{mutant}: {outcome}")


@dataclass(slots=True)
class _MutantJudge:
    judge: Judge
    hook: MutationHook
    cases: Mapping[str, tuple[Case, ...]]
    clean: dict[str, str] = field(default_factory=dict)

    def __call__(self, task: str | Mutant) -> tuple[Mutant, ...] | MutantVerdict:
        return self._record(task) if isinstance(task, str) else self._judge(task)

    def _record(self, op: str) -> tuple[Mutant, ...]:
        def run() -> None:
            for case in self.cases[op]:
                self._digest(case)

        return self.hook.recorded(op, run)

    def _judge(self, mutant: Mutant) -> MutantVerdict:
        outcome = EQUIVALENT
        for case in self.cases[mutant.op]:
            before = self._digest(case)
            with self.hook.applied(mutant):
                trial = self.judge.trial(case)
            if trial.result.status is not OpStatus.PASS:
                return MutantVerdict(mutant, CAUGHT, case.case_id, trial.result.status.value)
            if output_digest(trial.outputs) != before:
                outcome = SURVIVED
        return MutantVerdict(mutant, outcome)

    def _digest(self, case: Case) -> str:
        """Of the unchanged kernel.

        Raises:
            VacuousError: the case fails without a mutation.
        """
        if case.case_id not in self.clean:
            trial = self.judge.trial(case)
            if trial.result.status is not OpStatus.PASS:
                raise VacuousError(
                    f"{case.case_id} is {trial.result.status.value} without any mutation: "
                    f"{trial.result.message}"
                )
            self.clean[case.case_id] = output_digest(trial.outputs)
        return self.clean[case.case_id]


def _work(
    targets: ParityTargets,
    tolerances: ToleranceTable,
    hook: str,
    cases: Mapping[str, tuple[Case, ...]],
) -> _MutantJudge:
    torch.set_num_threads(1)
    judge = targets.judge(tolerances, backend="interpret")
    return _MutantJudge(judge, resolve_target(hook), cases)
