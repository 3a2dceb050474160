"""numpy's BLAS on one thread while a kernel runs: tiles are too small for more."""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

__all__ = ["single_threaded_blas"]

_SUFFIXES = ("64_", "")


@cache
def _openblas() -> tuple[Any, Any] | None:
    """(get, set) of the number of threads of the OpenBLAS that numpy brought along."""
    folder = os.path.join(os.path.dirname(np.__file__), os.pardir, "numpy.libs")
    for path in glob.glob(os.path.join(folder, "*openblas*")):
        library = ctypes.CDLL(path)
        for prefix in ("scipy_openblas", "openblas"):
            for suffix in _SUFFIXES:
                getter = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                setter = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                if getter is not None and setter is not None:
                    return getter, setter
    return None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """One BLAS thread inside the block. A numpy without OpenBLAS keeps its own setting."""
    controls = _openblas()
    if controls is None:
        yield
        return
    getter, setter = controls
    before = getter()
    if before == 1:
        yield
        return
    setter(1)
    try:
        yield
    finally:
        setter(before)
