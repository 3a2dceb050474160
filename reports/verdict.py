"""The verdict on a whole run, from the statuses of its records. The worst decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.errors import ExitCode
from harness.core.latency import failure_of
from harness.core.results import PointStatus
from harness.core.status import GateStatus, OpStatus, RunStatus, worst_exit_code
from reports.document import Tone
from reports.ledger import Entry, Ledger

__all__ = ["AREAS", "AreaVerdict", "RunVerdict", "entry_exit_code", "tone_of", "verdict_of"]

# Kinds that carry evidence, with the words a reader knows them by.
AREAS: Mapping[str, str] = {
    "parity": "kernel parity",
    "tokens": "token match",
    "sweep": "latency sweep",
    "gate": "gate",
}
# Kinds that a run need not have: they count where they are, and nobody misses them.
_FURTHER_AREAS: Mapping[str, str] = {"step": "decode step", "compile": "graphs compiled"}
_UNITS: Mapping[str, tuple[str, str]] = {
    "parity": ("case", "passed"),
    "tokens": ("comparison", "matched"),
    "sweep": ("point", "measured"),
    "gate": ("gated metric", "passed"),
    "step": ("step ledger", "measured"),
    "compile": ("graph", "compiled"),
}
_WORDS: Mapping[ExitCode, str] = {
    ExitCode.PASS: "PASS",
    ExitCode.MISMATCH: "FAIL",
    ExitCode.USAGE: "ERROR",
    ExitCode.CANNOT_JUDGE: "CANNOT JUDGE",
    ExitCode.VACUOUS: "VACUOUS",
    ExitCode.RANK: "RANK LOST",
    ExitCode.INTERNAL: "INTERNAL ERROR",
    ExitCode.INTERRUPTED: "INTERRUPTED",
}
_POINT_EXIT: Mapping[str, ExitCode] = {
    PointStatus.OK: ExitCode.PASS,
    PointStatus.FAILED: ExitCode.MISMATCH,
    PointStatus.CRASHED: ExitCode.RANK,
}
_STAGE_EXIT: Mapping[str, ExitCode] = {
    **{code.name: code for code in ExitCode},
    **{status.value: status.exit_code for status in (*RunStatus, *OpStatus)},
    **{status.value: status.exit_code for status in GateStatus},
    "OK": ExitCode.PASS,
    "DONE": ExitCode.PASS,
    "FAILED": ExitCode.MISMATCH,
    "FAIL": ExitCode.MISMATCH,
    "ERROR": ExitCode.MISMATCH,
    "CRASHED": ExitCode.RANK,
}


@dataclass(frozen=True, slots=True)
class AreaVerdict:
    """One kind of evidence.

    Attributes:
        num_good, num_judged: of the records that count; advisory and pruned ones do not.
        num_missing: planned records that the run does not hold.
        statuses: every status with its count, those that do not count included.
    """

    kind: str
    exit_code: ExitCode
    num_good: int
    num_judged: int
    statuses: Mapping[str, int]
    num_missing: int = 0

    @property
    def title(self) -> str:
        return {**AREAS, **_FURTHER_AREAS}[self.kind]

    @property
    def phrase(self) -> str:
        """ "50 of 56 cases passed"."""
        unit, verb = _UNITS[self.kind]
        plural = "" if self.num_judged == 1 else "s"
        text = f"{self.num_good} of {self.num_judged} {unit}{plural} {verb}"
        return f"{text}, {self.num_missing} planned have no record" if self.num_missing else text

    @property
    def breakdown(self) -> str:
        """ "50 PASS · 1 TIMEOUT"."""
        # A no-break space keeps each count with its status.
        return " · ".join(f"{count}\u00a0{status}" for status, count in self.statuses.items())


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """All areas and the word for the whole run."""

    exit_code: ExitCode
    areas: tuple[AreaVerdict, ...]
    absent: tuple[str, ...]
    red_stages: tuple[str, ...]

    @property
    def word(self) -> str:
        return _WORDS[self.exit_code]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, with what was not run."""
        parts = [area.phrase for area in self.areas]
        text = ", ".join(parts) if parts else "Nothing was judged"
        if self.red_stages:
            text += f"; stages that did not pass: {', '.join(self.red_stages)}"
        if self.absent:
            text += f". No records of: {', '.join(self.absent)}"
        return f"{text}."


def verdict_of(ledger: Ledger) -> RunVerdict:
    """Judge a run. A run without evidence is VACUOUS, whatever its stages say."""
    planned = {entry.payload["kind"]: entry.payload["keys"] for entry in ledger.of_kind("plan")}
    areas = tuple(
        _area(ledger, kind, planned.get(kind, ()))
        for kind in (*AREAS, *_FURTHER_AREAS)
        if kind in planned or ledger.of_kind(kind)
    )
    stages = [(entry, entry_exit_code(entry)) for entry in ledger.of_kind("stage")]
    codes = [area.exit_code for area in areas]
    codes += [code for _, code in stages if code is not None]
    evidence = [area for area in areas if area.num_judged]
    if not evidence:
        codes.append(ExitCode.VACUOUS)
    return RunVerdict(
        exit_code=worst_exit_code(codes),
        areas=areas,
        absent=tuple(title for kind, title in AREAS.items() if not ledger.of_kind(kind)),
        red_stages=tuple(
            str(entry.payload["name"]) for entry, code in stages if code is not ExitCode.PASS
        ),
    )


def entry_exit_code(entry: Entry) -> ExitCode | None:
    """What one record says to the shell; None where it does not count."""
    return _JUDGES[entry.record.kind](entry.payload)


def tone_of(code: ExitCode | None) -> Tone:
    """The tone of a verdict."""
    if code is None:
        return Tone.MUTED
    if code is ExitCode.PASS:
        return Tone.GOOD
    return Tone.DOUBT if code in (ExitCode.CANNOT_JUDGE, ExitCode.VACUOUS) else Tone.BAD


def _area(ledger: Ledger, kind: str, planned: Sequence[str]) -> AreaVerdict:
    """Judge one kind; a planned record that is missing leaves the kind unjudged."""
    entries = ledger.of_kind(kind)
    missing = set(planned) - {entry.key for entry in entries}
    judged = [code for entry in entries if (code := entry_exit_code(entry)) is not None]
    statuses = Counter(str(entry.payload["status"]) for entry in entries)
    return AreaVerdict(
        kind=kind,
        exit_code=worst_exit_code([*judged, *([ExitCode.CANNOT_JUDGE] if missing else [])]),
        num_good=sum(code is ExitCode.PASS for code in judged),
        num_judged=len(judged),
        statuses=dict(sorted(statuses.items(), key=lambda item: (-item[1], item[0]))),
        num_missing=len(missing),
    )


def _parity_code(payload: Mapping[str, Any]) -> ExitCode:
    status = OpStatus(payload["status"])
    nulls = payload.get("nulls") or {}
    if status is OpStatus.PASS and not all(nulls.values()):
        return ExitCode.VACUOUS  # a wrong answer would have passed too
    return status.exit_code


def _tokens_code(payload: Mapping[str, Any]) -> ExitCode:
    return RunStatus(payload["status"]).exit_code


def _sweep_code(payload: Mapping[str, Any]) -> ExitCode | None:
    status = payload["status"]
    if status == PointStatus.OK and any(map(failure_of, payload["requests"])):
        return ExitCode.MISMATCH
    return _POINT_EXIT.get(status)


def _gate_code(payload: Mapping[str, Any]) -> ExitCode | None:
    return None if payload.get("advisory") else GateStatus(payload["status"]).exit_code


def _stage_code(payload: Mapping[str, Any]) -> ExitCode:
    return _STAGE_EXIT.get(str(payload["status"]).upper(), ExitCode.CANNOT_JUDGE)


def _no_code(payload: Mapping[str, Any]) -> None:
    """A metric is a number and a plan an intention: neither is a verdict."""
    del payload


_JUDGES: Mapping[str, Callable[[Mapping[str, Any]], ExitCode | None]] = {
    "plan": _no_code,
    "parity": _parity_code,
    "tokens": _tokens_code,
    "sweep": _sweep_code,
    "gate": _gate_code,
    "stage": _stage_code,
    "metric": _no_code,
    "step": _stage_code,
    "compile": _stage_code,
}
