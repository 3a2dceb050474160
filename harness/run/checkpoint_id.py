"""A checkpoint's identity by content, cheap enough for one of hundreds of gigabytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.core.errors import UsageError

__all__ = ["checkpoint_id"]

_SUFFIXES = (".json", ".safetensors")
_NUM_WINDOWS = 64
_WINDOW_BYTES = 4096
# Files up to this size are hashed whole: configurations, indices, tokenizers, tiny shards.
_WHOLE_BYTES = 8 * 1024 * 1024


def checkpoint_id(directory: Path) -> str:
    """16 hexadecimal digits over names, sizes and content of a checkpoint's files.

    Small files are hashed whole; large shards by their header end and 64 evenly spaced windows,
    which a changed seed or precision cannot leave untouched.

    Raises:
        UsageError: no such directory, or no safetensors file in it.
    """
    if not directory.is_dir():
        raise UsageError(f"checkpoint {directory}: is no directory")
    files = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
    if not any(path.suffix == ".safetensors" for path in files):
        raise UsageError(f"checkpoint {directory}: holds no .safetensors file")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        _update(digest, path)
    return digest.hexdigest()[:16]


def _update(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
            return
        for window in range(_NUM_WINDOWS):
            file.seek((size - _WINDOW_BYTES) * window // (_NUM_WINDOWS - 1))
            digest.update(file.read(_WINDOW_BYTES))
