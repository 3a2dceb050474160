"""Does token match find what it must? Faults put into an engine, and what was said of them.

A fault is found when its verdict has the right status, the right phase and the right first
position: a judge that is red for another reason has not found it. Controls are the same settings
without a fault; they must match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.core.engine_face import EngineFace, EngineFactory, EngineSettings
from harness.core.errors import VacuousError
from harness.core.results import TokenMatch
from harness.core.status import RunStatus
from harness.core.token_suite import Prompt, TokenPair, TokenSuite
from harness.run.tokens import run_tokens

__all__ = ["FaultCase", "FaultVerdict", "Finding", "finding_of", "found_share", "judge_faults"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a verdict says: status, phase and the first generated position that is wrong."""

    status: RunStatus
    phase: str | None
    position: int | None

    def __str__(self) -> str:
        if self.phase is None:
            return self.status.value
        return f"{self.status.value} in {self.phase} at {self.position}"


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A fault, the pair and prompt on which it must show, and how.

    Attributes:
        open_faulty: opens the candidate with the fault in it; a control opens a sound one.
    """

    name: str
    prompt: Prompt
    pair: TokenPair
    expected: Finding
    open_faulty: Callable[[EngineSettings], EngineFace]

    @property
    def is_control(self) -> bool:
        """Whether nothing is wrong here."""
        return self.expected.status is RunStatus.MATCH


@dataclass(frozen=True, slots=True)
class FaultVerdict:
    """What token match said of a fault."""

    case: FaultCase
    found: Finding
    match: TokenMatch

    @property
    def is_right(self) -> bool:
        """Status, phase and position are those of the fault."""
        return self.found == self.case.expected

    @property
    def changed_id_share(self) -> float | None:
        """Share of the continuation's ids that the fault changed; None without a continuation."""
        match = self.match
        if not match.oracle_ids:
            return None
        pairs = zip(match.oracle_ids, match.candidate_ids, strict=False)
        changed = sum(ours != theirs for ours, theirs in pairs)
        missing = abs(len(match.oracle_ids) - len(match.candidate_ids))
        return (changed + missing) / len(match.oracle_ids)


def judge_faults(
    cases: Sequence[FaultCase], factory: EngineFactory, checkpoint: str
) -> Iterator[FaultVerdict]:
    """Run every case on its own pair of engines.

    Args:
        factory: opens the sound engines (the oracles).
    """
    for case in cases:
        pair = case.pair.at(checkpoint)
        suite = TokenSuite("mutation", "", (case.prompt,), (pair,))
        ((match),) = (one.match for one in run_tokens(suite, _factory(case, pair, factory)))
        yield FaultVerdict(case, finding_of(match), match)


def _factory(case: FaultCase, pair: TokenPair, factory: EngineFactory) -> EngineFactory:
    def opened(settings: EngineSettings) -> EngineFace:
        return case.open_faulty(settings) if settings == pair.candidate else factory(settings)

    return opened


def finding_of(match: TokenMatch) -> Finding:
    """The first wrong position of a verdict, by logits or ids; of a failed run, where it ended."""
    position = match.first_changed
    if position is None:
        return Finding(match.status, None, None)
    return Finding(match.status, "prefill" if position == 0 else "decode", position)


def found_share(verdicts: Iterable[FaultVerdict]) -> float:
    """Share of faults that were found.

    Raises:
        VacuousError: there was no fault, or a control did not match.
    """
    judged = list(verdicts)
    for verdict in judged:
        if verdict.case.is_control and not verdict.is_right:
            raise VacuousError(
                f"control {verdict.case.name!r} is {verdict.found}: without a fault it must match"
            )
    faults = [verdict for verdict in judged if not verdict.case.is_control]
    if not faults:
        raise VacuousError("no fault was put in")
    return sum(verdict.is_right for verdict in faults) / len(faults)
