"""Reused fp32 work arrays: large temporaries are dominated by the allocator's page faults."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["scratch"]


class _Arena(threading.local):
    def __init__(self) -> None:
        self.flat: dict[str, npt.NDArray[Any]] = {}
        self.shaped: dict[tuple[str, tuple[int, ...]], npt.NDArray[Any]] = {}


_ARENA = _Arena()


def scratch(slot: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """An fp32 array of `shape` with undefined contents, valid until `slot` is asked for again."""
    shaped = _ARENA.shaped.get((slot, shape))
    if shaped is not None:
        return shaped
    size = int(np.prod(shape))
    flat = _ARENA.flat.get(slot)
    if flat is None or flat.size < size:
        flat = _ARENA.flat[slot] = np.empty(max(size, 1 << 16), np.float32)
        _ARENA.shaped = {key: value for key, value in _ARENA.shaped.items() if key[0] != slot}
    view = flat[:size].reshape(shape)
    _ARENA.shaped[slot, shape] = view
    return view
