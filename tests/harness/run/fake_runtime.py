"""A runtime whose output memory can be poisoned, for candidates written in torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["allocated", "poisoned"]

_STATE = {"float": 0.0, "integer": 0}


@contextlib.contextmanager
def poisoned(value: float) -> Iterator[None]:
    """Fresh memory holds `value`, integers one that goes with it."""
    before = dict(_STATE)
    _STATE.update(float=value, integer=5 if value == value else 4)  # NaN is not itself
    try:
        yield
    finally:
        _STATE.update(before)


def allocated(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Output memory nobody has written."""
    fill = _STATE["float"] if dtype.is_floating_point else _STATE["integer"]
    return torch.full(shape, fill, dtype=dtype)
