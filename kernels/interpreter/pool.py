"""Buffers of freed on-chip tiles, used again: fresh pages cost more than the arithmetic on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["give_back", "take"]

Buffer = npt.NDArray[np.uint8]
_FREE: dict[int, list[Buffer]] = {}
_KEPT_PER_SIZE = 32


def take(nbytes: int) -> Buffer:
    """A buffer of `nbytes` with undefined contents."""
    free = _FREE.get(nbytes)
    if free:
        return free.pop()
    # 64-byte aligned, so that SIMD loops take their fast path.
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def give_back(buffer: Any) -> None:
    """`buffer` is not referred to any more."""
    free = _FREE.setdefault(buffer.size, [])
    if len(free) < _KEPT_PER_SIZE:
        free.append(buffer)
