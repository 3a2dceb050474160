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
    """Why nothing can be compared: HANG, CRASH, RANK_DESYNC or SKIPPED.

    Attributes:
        num_tokens: generated before the ranks failed; None where that is not known.
        prompt: name of the prompt that was being heard; empty before the first.
    """

    status: RunStatus
    message: str
    detail: str
    num_tokens: int | None = None
    prompt: str = ""


def failure_of(error: Exception, settings: EngineSettings, prompt: str = "") -> SettingFailure:
    """The status of an exception that an engine let through.

    Raises:
        HarnessError: wrong usage or a missing SDK, which is not the setting's doing.
    """
    if isinstance(error, RankError):
        message = f"{settings.label}: rank {error.rank} {error.reason}{_place(error, prompt)}"
        return SettingFailure(_rank_status(error), message, error.detail, error.num_tokens, prompt)
    if isinstance(error, KernelError):
        unsupported = error.status == OpStatus.UNSUPPORTED.value
        status = RunStatus.SKIPPED if unsupported else RunStatus.CRASH
        message = f"{settings.label}: {error.status}: {error}"
    elif isinstance(error, HarnessError):
        raise error
    else:
        status = RunStatus.CRASH
        message = f"{settings.label}: {type(error).__name__}: {error}"
    detail = "".join(traceback.format_exception(error))
    return SettingFailure(status, message, detail, prompt=prompt)


def _place(error: RankError, prompt: str) -> str:
    if error.num_tokens is None:
        return ""
    return f" after {error.num_tokens} tokens of prompt {prompt!r}"


def _rank_status(error: RankError) -> RunStatus:
    """HANG for ranks that gave no answer, RANK_DESYNC where they disagree, CRASH otherwise."""
    reason = f"{error.reason} {error.detail.partition(chr(10))[0]}".lower()
    if any(word in reason for word in _HANG_WORDS):
        return RunStatus.HANG
    if any(word in reason for word in _DESYNC_WORDS):
        return RunStatus.RANK_DESYNC
    return RunStatus.CRASH
