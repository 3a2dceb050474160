"""One case, start to end: inputs, golden, baseline, candidate, verdict, null solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from harness.core.case import Case, Tolerance
from harness.core.errors import UsageError
from harness.core.op_table import OpTable
from harness.core.results import ErrorMap, OutputErrors, ParityResult
from harness.core.status import OpStatus
from harness.run.bundle import bundle_directory, write_bundle
from harness.run.candidate import POISONS, Attempt, Candidate, Poison, bits_differ, unwritten
from harness.run.clock import Clock, SystemClock
from harness.run.error_map import error_map
from harness.run.fallbacks import allowed_by_environment, fallback_failure
from harness.run.golden import MissingGolden, expected_of, kernel_numerics
from harness.run.inputs import Arguments, build_inputs
from harness.run.nulls import NullReport, judge_nulls
from harness.run.shrink import shrunk
from harness.run.verdict import Expected, Verdict, judge_outputs, needs_tolerance

__all__ = ["Cores", "Judge", "ToleranceTable", "Trial"]

Cores = Callable[[int], AbstractContextManager[object]]
ToleranceTable = Mapping[str, Mapping[str, Tolerance]]  # op -> output -> budget

_WITHOUT_BUNDLE = (OpStatus.PASS, OpStatus.SKIPPED, OpStatus.UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class Trial:
    """A judged case with what it was judged on; `expected` is None where there was no golden."""

    case: Case
    arguments: Arguments
    result: ParityResult
    expected: Expected | None = None
    outputs: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges cases of one backend.

    Attributes:
        reference: gives golden and baseline.
        kernels: the ops under test; a missing op is UNSUPPORTED.
        tolerances: op -> output -> budget.
        backend: name kept in the results.
        poison, counters: see `Candidate`.
        cores: `cores(n)` makes launches inside the block use n physical cores; without it a case
            that names its cores is UNSUPPORTED, not run on others.
        repeat: calls whose outputs must be equal byte for byte; their times are kept.
        bundle_root: where a failing case leaves what replays it; None keeps nothing.
    """

    reference: OpTable
    kernels: OpTable
    tolerances: ToleranceTable
    backend: str
    poison: Poison | None = None
    counters: Callable[[], Mapping[str, float]] | None = None
    repeat: int = 1
    bundle_root: Path | None = None
    clock: Clock = field(default_factory=SystemClock)
    cores: Cores | None = None

    def run(self, case: Case, arguments: Arguments | None = None) -> ParityResult:
        """The verdict on one case, on its own seeded inputs unless some are given.

        Raises:
            UsageError: the case itself cannot be built.
        """
        return self.kept(self.trial(case, arguments), case)

    def kept(self, trial: Trial, found_in: Case) -> ParityResult:
        """The trial's result, after leaving a bundle where it failed."""
        if self.bundle_root is None or trial.result.status in _WITHOUT_BUNDLE:
            return trial.result
        return replace(trial.result, bundle=str(self._keep(trial, found_in)))

    def shrink(self, case: Case, status: OpStatus) -> Case:
        """Put the smallest shape that fails with `status` in the place of the case's bundle."""
        kept: list[Trial] = []

        def still_fails(smaller: Case) -> bool:
            try:
                trial = self.trial(smaller)
            except UsageError:  # these lengths do not go together
                return False
            if trial.result.status is status:
                kept.append(trial)
            return trial.result.status is status

        smallest = shrunk(case, still_fails)
        if kept and self.bundle_root is not None:
            self._keep(kept[-1], case)
        return smallest

    def trial(self, case: Case, arguments: Arguments | None = None) -> Trial:
        """Judge a case once and keep everything that led to the verdict.

        Raises:
            UsageError: the case itself cannot be built.
        """
        numerics = kernel_numerics(case, self.kernels.fp8_max)
        if arguments is None:
            arguments = build_inputs(case, fp8_max=numerics.fp8_max)
        op = self.kernels.ops.get(case.op)
        if op is None:
            message = f"the kernel table has no op {case.op}"
            return Trial(case, arguments, self._unjudged(case, OpStatus.UNSUPPORTED, message))
        if case.lnc and self.cores is None:
            message = f"{self.backend} cannot choose the {case.lnc} cores of this case"
            return Trial(case, arguments, self._unjudged(case, OpStatus.UNSUPPORTED, message))
        tolerances = self.tolerances.get(case.op, {})
        expected = expected_of(case, arguments, self.reference, tolerances, numerics)
        if isinstance(expected, MissingGolden):
            skipped = self._unjudged(case, OpStatus.SKIPPED, expected.message, expected.detail)
            return Trial(case, arguments, skipped)
        defect = expected.defect()
        if defect:
            vacuous = self._unjudged(case, OpStatus.VACUOUS, defect)
            return Trial(case, arguments, vacuous, expected)
        candidate = Candidate(op, numerics, self.clock, self.poison, self.counters)
        on_cores = self.cores(case.lnc) if self.cores and case.lnc else nullcontext()
        with on_cores:
            attempts = _attempts(candidate, arguments, self.repeat)
        nulls = judge_nulls(expected, arguments) if case.probe else NullReport({})
        result = self._judged(case, _verdict_on(attempts, expected), attempts, nulls)
        if result.status in (OpStatus.OUT_OF_TOLERANCE, OpStatus.NON_FINITE):
            maps = _error_maps(attempts[0].outputs, expected, result.errors)
            result = replace(result, error_maps=maps)
        return Trial(case, arguments, result, expected, attempts[0].outputs)

    def _keep(self, trial: Trial, found_in: Case) -> Path:
        assert self.bundle_root is not None
        return write_bundle(
            bundle_directory(self.bundle_root, found_in),
            trial.case,
            trial.arguments,
            trial.expected,
            trial.outputs,
            trial.result,
            found_in=found_in.case_id,
        )

    def _unjudged(
        self, case: Case, status: OpStatus, message: str, detail: str = ""
    ) -> ParityResult:
        return ParityResult(case.case_id, case.op, self.backend, status, message, detail)

    def _judged(
        self, case: Case, verdict: Verdict, attempts: list[Attempt], nulls: NullReport
    ) -> ParityResult:
        if verdict.status is OpStatus.PASS and nulls.defect:
            verdict = Verdict(OpStatus.VACUOUS, nulls.defect)
        counters = attempts[0].counters
        if verdict.status is OpStatus.PASS and counters.get("launches") == 0:
            verdict = Verdict(OpStatus.UNSUPPORTED, f"no kernel was launched on {self.backend}")
        left_device = fallback_failure(counters, allowed_by_environment())
        if verdict.status is OpStatus.PASS and left_device:
            verdict = Verdict(OpStatus.RUN_ERROR, left_device)
        return ParityResult(
            case.case_id,
            case.op,
            self.backend,
            verdict.status,
            verdict.message,
            detail=next((a.detail for a in attempts if a.detail), ""),
            errors=verdict.errors,
            nulls=nulls.rejected,
            num_fallbacks=int(counters.get("num_fallbacks", 0)),
            elapsed_ms=tuple(a.elapsed_ms for a in attempts if a.failure is None),
            counters=counters,
        )


def _error_maps(
    outputs: Sequence[object], expected: Expected, errors: Sequence[OutputErrors]
) -> dict[str, ErrorMap]:
    """Of the outputs that were found wrong; where none was compared, of all that differ."""
    wrong = {error.name for error in errors if not error.budget_ratio <= 1}
    maps = {}
    for value, output, golden in zip(expected.spec.outputs, outputs, expected.golden, strict=True):
        if not isinstance(output, torch.Tensor) or (wrong and value.name not in wrong):
            continue
        exact = not needs_tolerance(expected.spec, value.name)
        found = error_map(output, golden, exact=exact)
        if found is not None and any(map(any, found.cells)):
            maps[value.name] = found
    return maps


def _attempts(candidate: Candidate, arguments: Arguments, repeat: int) -> list[Attempt]:
    """Under each poison; again under the first where those two differ, to tell memory that was
    never written from a result that is not deterministic; then `repeat` - 1 times more."""
    attempts = [candidate.attempt(arguments, POISONS[0])]
    if candidate.poison is not None and attempts[0].failure is None:
        attempts.append(candidate.attempt(arguments, POISONS[1]))
        if attempts[1].failure is None and bits_differ(attempts[0], attempts[1]):
            attempts.append(candidate.attempt(arguments, POISONS[0]))
    for _ in range(repeat - 1):
        if attempts[-1].failure is not None:
            break
        attempts.append(candidate.attempt(arguments, POISONS[0]))
    return attempts


def _verdict_on(attempts: list[Attempt], expected: Expected) -> Verdict:
    for number, attempt in enumerate(attempts, start=1):
        if attempt.failure is not None:
            where = "" if number == 1 else f"in run {number} of equal inputs: "
            return Verdict(attempt.failure, where + attempt.message)
    verdict = judge_outputs(attempts[0].outputs, expected)
    if verdict.status in (OpStatus.WRONG_SHAPE, OpStatus.WRONG_DTYPE):
        return verdict
    unstable = _instability(attempts)
    if unstable is not None:
        return unstable
    modified = next((a.modified for a in attempts if a.modified), "")
    if verdict.status is OpStatus.PASS and modified:
        return Verdict(OpStatus.INPUT_MODIFIED, modified, verdict.errors)
    return verdict


def _instability(attempts: list[Attempt]) -> Verdict | None:
    """UNWRITTEN where outputs follow the poison, RUN_ERROR where runs differ without a cause."""
    first, *others = attempts
    for second in others:
        kept = unwritten(first, second)
        if kept:
            return Verdict(OpStatus.UNWRITTEN, kept)
    if len(others) > 1 and bits_differ(first, others[0]) and not bits_differ(first, others[1]):
        return Verdict(
            OpStatus.UNWRITTEN,
            f"{bits_differ(first, others[0])}: the result depends on memory that was not written",
        )
    for second in others:
        difference = bits_differ(first, second)
        if difference:
            message = f"equal inputs give different bytes: {difference}"
            return Verdict(OpStatus.RUN_ERROR, message)
    return None
