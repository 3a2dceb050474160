"""Which op tables a command runs on: by a word, or what fits the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.engine_face import REFERENCE_OPS, EngineSettings
from harness.core.errors import UsageError

__all__ = ["KERNEL_OPS", "with_op_targets", "with_ops"]

KERNEL_OPS = (*REFERENCE_OPS, "kernels.op_table:TABLE")
_BY_WORD = {"references": REFERENCE_OPS, "kernels": KERNEL_OPS}


def with_ops(settings: EngineSettings, word: str) -> EngineSettings:
    """The settings with the tables named; "" takes the kernels on a device, else leaves them.

    Raises:
        UsageError: another word.
    """
    if not word:
        return settings if settings.device == "cpu" else replace(settings, ops=KERNEL_OPS)
    if word not in _BY_WORD:
        raise UsageError(f"--ops {word!r}: choose {' or '.join(_BY_WORD)}")
    return replace(settings, ops=_BY_WORD[word])


def with_op_targets(settings: EngineSettings, given: Sequence[str] | None) -> EngineSettings:
    """The settings with what `--ops` says: one word as `with_ops` takes it, or targets.

    Raises:
        UsageError: another word.
    """
    if not given:
        return with_ops(settings, "")
    if len(given) == 1 and ":" not in given[0]:
        return with_ops(settings, given[0])
    return replace(settings, ops=tuple(given))
