"""What becomes of a setting whose engine did not finish: a status, never a lost run."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from harness.core.engine_face import EngineSettings
from harness.core.errors import HarnessError, KernelError, RankError
from harness.core.status import OpStatus, RunStatus

__all__ = ["SettingFailure", "failure_of"]

_HANG_WORDS = ("no answer", "hang", "hung")
_DESYNC_WORDS = ("disagree", "desync")


@dataclass(frozen=True, slots=True)
class SettingFailure:
    """Why nothing can be compared: HANG, CRASH, RANK_DESYNC or SKIPPED."""

    status: RunStatus
    message: str
    detail: str


def failure_of(error: Exception, settings: EngineSettings) -> SettingFailure:
    """The status of an exception that an engine let through.

    Raises:
        HarnessError: wrong usage or a missing SDK, which is not the setting's doing.
    """
    if isinstance(error, RankError):
        message = f"{settings.label}: rank {error.rank} {error.reason}"
        return SettingFailure(_rank_status(error), message, error.detail)
    if isinstance(error, KernelError):
        unsupported = error.status == OpStatus.UNSUPPORTED.value
        status = RunStatus.SKIPPED if unsupported else RunStatus.CRASH
        message = f"{settings.label}: {error.status}: {error}"
    elif isinstance(error, HarnessError):
        raise error
    else:
        status = RunStatus.CRASH
        message = f"{settings.label}: {type(error).__name__}: {error}"
    return SettingFailure(status, message, "".join(traceback.format_exception(error)))


def _rank_status(error: RankError) -> RunStatus:
    """HANG for ranks that gave no answer, RANK_DESYNC where they disagree, CRASH otherwise."""
    reason = f"{error.reason} {error.detail.partition(chr(10))[0]}".lower()
    if any(word in reason for word in _HANG_WORDS):
        return RunStatus.HANG
    if any(word in reason for word in _DESYNC_WORDS):
        return RunStatus.RANK_DESYNC
    return RunStatus.CRASH
