"""Kernels that the hardware or the compiler would refuse, with what the refusal must say."""

from __future__ import annotations

import importlib

from tests.kernels.interpreter.wrong_kernels.registry import WRONG

__all__ = ["WRONG"]

_SUBJECTS = (
    "allocation",
    "places",
    "unwritten",
    "operations",
    "engines",
    "tensor_engine",
    "dma",
    "searches",
    "control",
)
for _subject in _SUBJECTS:
    importlib.import_module(f"{__name__}.{_subject}")
