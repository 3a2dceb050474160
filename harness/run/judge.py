"""One case, start to end: inputs, golden, baseline, candidate, verdict, null solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core.case import Case, Tolerance
from harness.core.op_table import OpTable
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.bundle import write_bundle
from harness.run.candidate import POISONS, Attempt, Candidate, Poison, bits_differ, unwritten
from harness.run.clock import Clock, SystemClock
from harness.run.golden import MissingGolden, expected_of, kernel_numerics
from harness.run.inputs import Arguments, build_inputs
from harness.run.nulls import NullReport, judge_nulls
from harness.run.verdict import Expected, Verdict, judge_outputs

__all__ = ["Judge", "ToleranceTable"]

ToleranceTable = Mapping[str, Mapping[str, Tolerance]]  # op -> output -> budget

_WITHOUT_BUNDLE = (OpStatus.PASS, OpStatus.SKIPPED, OpStatus.UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges cases of one backend.

    Attributes:
        reference: gives golden and baseline.
        kernels: the ops under test; a missing op is UNSUPPORTED.
        tolerances: op -> output -> budget.
        backend: name kept in the results.
        poison, counters: see `Candidate`.
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

    def run(self, case: Case, arguments: Arguments | None = None) -> ParityResult:
        """The verdict on one case, on its own seeded inputs unless some are given.

        Raises:
            UsageError: the case itself cannot be built.
        """
        numerics = kernel_numerics(case, self.kernels.fp8_max)
        if arguments is None:
            arguments = build_inputs(case, fp8_max=numerics.fp8_max)
        op = self.kernels.ops.get(case.op)
        if op is None:
            message = f"the kernel table has no op {case.op}"
            return self._unjudged(case, OpStatus.UNSUPPORTED, message)
        expected = expected_of(
            case, arguments, self.reference, self.tolerances.get(case.op, {}), numerics
        )
        if isinstance(expected, MissingGolden):
            return self._unjudged(case, OpStatus.SKIPPED, expected.message, expected.detail)
        if expected.defect():
            return self._unjudged(case, OpStatus.VACUOUS, expected.defect())
        candidate = Candidate(op, numerics, self.clock, self.poison, self.counters)
        attempts = _attempts(candidate, arguments, self.repeat)
        nulls = judge_nulls(expected, arguments) if case.probe else NullReport({})
        result = self._judged(case, _verdict_on(attempts, expected), attempts, nulls)
        if self.bundle_root is None or result.status in _WITHOUT_BUNDLE:
            return result
        bundle = write_bundle(
            self.bundle_root, case, arguments, expected, attempts[0].outputs, result
        )
        return replace(result, bundle=str(bundle))

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
