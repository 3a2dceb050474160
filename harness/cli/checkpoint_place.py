"""Where a command's checkpoint is: given, or the tiny one it was written for."""

from __future__ import annotations

from pathlib import Path

from harness.core.errors import UsageError

__all__ = ["CHECKPOINT_ROOT", "checkpoint_directory"]

CHECKPOINT_ROOT = Path("checkpoints")


def checkpoint_directory(variant: str, given: Path | None) -> Path:
    """The given directory, or `checkpoints/<variant>`, generated if it is not there yet.

    Raises:
        UsageError: the given directory does not exist, or the default cannot be written.
        InputError: a damaged checkpoint is in the way.
    """
    if given is not None:
        if not given.is_dir():
            raise UsageError(f"--checkpoint {given}: there is no such directory")
        return given
    from tiny_checkpoints.generator import generate

    return generate(variant, CHECKPOINT_ROOT / variant)
