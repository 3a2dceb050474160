"""What is said about one op, one position, one run and one gate, and the exit code of each."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from harness.core.errors import ExitCode

__all__ = ["GateStatus", "OpStatus", "PositionStatus", "RunStatus", "worst_exit_code"]


class OpStatus(Enum):
    """The verdict on one kernel case, in the order the checks are made (measurement.md §1)."""

    PASS = "PASS"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    NON_FINITE = "NON_FINITE"
    OUT_OF_TOLERANCE = "OUT_OF_TOLERANCE"
    INPUT_MODIFIED = "INPUT_MODIFIED"
    UNWRITTEN = "UNWRITTEN"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUN_ERROR = "RUN_ERROR"
    TIMEOUT = "TIMEOUT"
    UNSUPPORTED = "UNSUPPORTED"
    VACUOUS = "VACUOUS"
    SKIPPED = "SKIPPED"

    @property
    def exit_code(self) -> ExitCode:
        return _OP_EXIT.get(self, ExitCode.MISMATCH)

    @property
    def compared_values(self) -> bool:
        """True where numbers were compared, so that errors accompany the status."""
        return self in (OpStatus.PASS, OpStatus.OUT_OF_TOLERANCE, OpStatus.INPUT_MODIFIED)


_OP_EXIT = {
    OpStatus.PASS: ExitCode.PASS,
    OpStatus.SKIPPED: ExitCode.CANNOT_JUDGE,
    OpStatus.UNSUPPORTED: ExitCode.CANNOT_JUDGE,
    OpStatus.VACUOUS: ExitCode.VACUOUS,
}


class PositionStatus(Enum):
    """One generated position of a candidate against the oracle."""

    MATCH = "MATCH"
    NEAR_TIE = "NEAR_TIE"
    DIVERGED = "DIVERGED"


class RunStatus(Enum):
    """One prompt under one pair of settings (measurement.md §2)."""

    MATCH = "MATCH"
    NEAR_TIE = "NEAR_TIE"
    DIVERGED = "DIVERGED"
    RANK_DESYNC = "RANK_DESYNC"
    HANG = "HANG"
    CRASH = "CRASH"
    VACUOUS = "VACUOUS"
    SKIPPED = "SKIPPED"

    @property
    def exit_code(self) -> ExitCode:
        return _RUN_EXIT[self]


_RUN_EXIT = {
    RunStatus.MATCH: ExitCode.PASS,
    RunStatus.NEAR_TIE: ExitCode.PASS,
    RunStatus.DIVERGED: ExitCode.MISMATCH,
    RunStatus.RANK_DESYNC: ExitCode.MISMATCH,
    RunStatus.HANG: ExitCode.RANK,
    RunStatus.CRASH: ExitCode.RANK,
    RunStatus.VACUOUS: ExitCode.VACUOUS,
    RunStatus.SKIPPED: ExitCode.CANNOT_JUDGE,
}


class GateStatus(Enum):
    """One metric against its baseline (measurement.md §6)."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    MISSING = "MISSING"
    NEW = "NEW"
    INCOMPARABLE = "INCOMPARABLE"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> ExitCode:
        return _GATE_EXIT[self]


_GATE_EXIT = {
    GateStatus.PASS: ExitCode.PASS,
    GateStatus.IMPROVED: ExitCode.PASS,
    GateStatus.NEW: ExitCode.PASS,
    GateStatus.REGRESSED: ExitCode.MISMATCH,
    GateStatus.MISSING: ExitCode.MISMATCH,
    GateStatus.INCONCLUSIVE: ExitCode.CANNOT_JUDGE,
    GateStatus.NO_BASELINE: ExitCode.CANNOT_JUDGE,
    GateStatus.INCOMPARABLE: ExitCode.CANNOT_JUDGE,
    GateStatus.INVALID: ExitCode.VACUOUS,
}

# A crash outranks a mismatch, a mismatch outranks "could not judge": the shell hears the worst.
_SEVERITY = (
    ExitCode.INTERRUPTED,
    ExitCode.INTERNAL,
    ExitCode.RANK,
    ExitCode.USAGE,
    ExitCode.MISMATCH,
    ExitCode.VACUOUS,
    ExitCode.CANNOT_JUDGE,
    ExitCode.PASS,
)


def worst_exit_code(codes: Iterable[ExitCode]) -> ExitCode:
    """The code a run of many verdicts ends with. No verdict at all is VACUOUS, never PASS."""
    present = set(codes)
    for code in _SEVERITY:
        if code in present:
            return code
    return ExitCode.VACUOUS
