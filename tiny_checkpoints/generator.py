"""Makes a tiny checkpoint, once, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from harness.core.shard_sums import has_sums, write_sums
from tiny_checkpoints.manifest import verify
from tiny_checkpoints.stored import stored_directory
from tiny_checkpoints.variants import variant_named
from tiny_checkpoints.writer import write_checkpoint

__all__ = ["generate"]


def generate(variant: str, directory: Path | str) -> Path:
    """Make a tiny checkpoint, or reuse one that is already there and intact.

    A trained one is copied from the package, others are drawn.
    Written beside the target first and renamed when whole, so that a broken run leaves nothing
    that looks like a checkpoint. The same bytes on every machine, checked against the manifest;
    a SHA256SUMS beside them lets engines check them again (harness.core.shard_sums).

    Args:
        variant: a name of `tiny_checkpoints.variants.VARIANTS`.
        directory: where it shall stand; parents are made.

    Returns:
        The directory.

    Raises:
        UsageError: unknown variant, or the place cannot be written.
        InputError: something else, or a damaged checkpoint, is in the way.
    """
    chosen = variant_named(variant)
    target = Path(directory)
    if _is_taken(target):
        verify(target, chosen.name)
        if not has_sums(target) and os.access(target, os.W_OK):
            # Made before engines looked for hashes; a place for reading only stays as it is.
            write_sums(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        if chosen.is_trained:
            shutil.copytree(stored_directory(chosen), staging, dirs_exist_ok=True)
        else:
            write_checkpoint(chosen, staging)
        verify(staging, chosen.name)
        write_sums(staging)
        staging.chmod(0o755)
        _move_into_place(staging, target, chosen.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _is_taken(target: Path) -> bool:
    return target.exists() and not (target.is_dir() and not any(target.iterdir()))


def _move_into_place(staging: Path, target: Path, variant: str) -> None:
    try:
        staging.rename(target)
    except OSError:
        # Another process was first: its checkpoint serves if it is whole.
        if not _is_taken(target):
            raise
        verify(target, variant)
