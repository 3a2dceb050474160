"""The exception tree. Each class knows the exit code of measurement.md §6.

    HarnessError
    ├── UsageError            2   a command line or an API call that cannot be carried out
    │   └── InputError        2   a file's content is wrong: file, field, value, remedy
    ├── MissingEvidenceError  3   SDK, golden or baseline absent: nothing can be judged
    ├── VacuousError          4   a judge that could not have said no
    ├── RankError             5   a rank died or hung
    │   └── RankDesyncError   1   a rank holds other values than the others of its batch
    └── KernelError           -   a kernel run ended; becomes an OpStatus, never an exit code

What is being judged never raises: it becomes a status. Errors are for wrong usage and broken
environments.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "ExitCode",
    "HarnessError",
    "InputError",
    "KernelError",
    "MissingEvidenceError",
    "RankDesyncError",
    "RankError",
    "UsageError",
    "VacuousError",
]


class ExitCode(IntEnum):
    """What the process says to the shell."""

    PASS = 0
    MISMATCH = 1
    USAGE = 2
    CANNOT_JUDGE = 3
    VACUOUS = 4
    RANK = 5
    INTERNAL = 70
    INTERRUPTED = 130


class HarnessError(Exception):
    """Base of every error a user may see without a traceback."""

    exit_code: ExitCode = ExitCode.INTERNAL


class UsageError(HarnessError):
    """The request cannot be carried out as it stands."""

    exit_code = ExitCode.USAGE


class InputError(UsageError):
    """A file's content is wrong.

    Args:
        file: path as the user gave it.
        field: the key, tensor name or line that is wrong.
        value: what stands there (printed with repr).
        remedy: what the user can do about it.
    """

    def __init__(self, file: object, field: str, value: object, remedy: str) -> None:
        self.file = str(file)
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{self.file}: {field} is {value!r}: {remedy}")


class MissingEvidenceError(HarnessError):
    """There is nothing to judge with: an SDK, a golden or a baseline is absent."""

    exit_code = ExitCode.CANNOT_JUDGE


class VacuousError(HarnessError):
    """The check could not have failed, so its success says nothing."""

    exit_code = ExitCode.VACUOUS


class RankError(HarnessError):
    """A rank died or hung.

    Args:
        rank: which one.
        reason: "died with signal 9", "no answer within 60 s", …
        detail: the rank's traceback or its last collectives, may be empty.

    Attributes:
        num_tokens: tokens that every request had by then; None where nobody counted.
    """

    exit_code = ExitCode.RANK
    num_tokens: int | None = None

    def __init__(self, rank: int, reason: str, detail: str = "") -> None:
        self.rank = rank
        self.reason = reason
        self.detail = detail
        super().__init__(f"rank {rank} {reason}" + (f"\n{detail}" if detail else ""))


class RankDesyncError(RankError):
    """Ranks of one batch disagree on what they hold bit for bit: a wrong result, not a lost rank.

    Args:
        rank: that differs.
        reason: in what, and from whom.
    """

    exit_code = ExitCode.MISMATCH

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(rank, reason, "RANK_DESYNC")


class KernelError(HarnessError):
    """A kernel could not be compiled or run, or left output unwritten.

    Args:
        status: name of the OpStatus it becomes: "COMPILE_ERROR", "RUN_ERROR", "UNWRITTEN" or
            "UNSUPPORTED".
        message: what happened, naming kernel, instruction, operand and limit where known.
    """

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)
