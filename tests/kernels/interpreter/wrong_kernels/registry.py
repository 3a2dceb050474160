"""The register of wrong kernels, and the tensors they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernels.interpreter.language as nl

WRONG: dict[str, tuple[Callable[[], Any], str]] = {}


def wrong(expected: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a kernel body under its name; `expected` is a pattern of the message."""

    def register(body: Callable[[], Any]) -> Callable[[], Any]:
        WRONG[body.__name__] = (body, expected)
        return body

    return register


def tile(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """A tile full of ones (HBM: zeros written by DMA)."""
    return nl.full(shape, 1, dtype, buffer)


def fresh(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """An unwritten tensor."""
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)
