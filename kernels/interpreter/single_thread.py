"""numpy's BLAS on one thread while a kernel runs: tiles are too small for more."""

from __future__ import annotations

import ctypes
import glob
import os
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


class single_threaded_blas:  # noqa: N801 - used as a context manager only
    """One BLAS thread inside the block. A numpy without OpenBLAS keeps its own setting.

    A class, since a generator's context manager costs as much as an instruction.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        controls = _openblas()
        self._before = 1 if controls is None else controls[0]()
        if controls is not None and self._before != 1:
            controls[1](1)

    def __exit__(self, *_: object) -> None:
        controls = _openblas()
        if controls is not None and self._before != 1:
            controls[1](self._before)
