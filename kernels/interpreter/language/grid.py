"""The launch grid and the memories."""

from __future__ import annotations

from typing import Any

from kernels.interpreter.errors import refuse
from kernels.interpreter.indexing import DynamicSlice
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.program import current_program

__all__ = [
    "ds",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "num_programs",
    "program_id",
    "program_ndim",
]


def ds(start: Any, size: int) -> DynamicSlice:
    """`size` elements from `start`, which may be a register."""
    return DynamicSlice(start, size)


def program_id(axis: int = 0) -> int:
    """Which of the launch's programs this is."""
    program = current_program("nl.program_id")
    if axis != 0:
        refuse("axis", axis, "0: the launch grid has one dimension", instruction="nl.program_id")
    return program.index


def num_programs(axes: int = 0) -> int:
    """Programs of the launch: 1 at LNC1, 2 at LNC2."""
    return current_program("nl.num_programs").launch.num_programs


def program_ndim() -> int:
    """Dimensions of the launch grid: 0 at LNC1."""
    return current_program("nl.program_ndim").launch.program_ndim


def is_hbm(buffer: Any) -> bool:
    """Whether `buffer` is HBM, private or shared."""
    return isinstance(buffer, MemoryRegion) and buffer.is_hbm


def is_on_chip(buffer: Any) -> bool:
    """Whether `buffer` is SBUF or PSUM."""
    return isinstance(buffer, MemoryRegion) and not buffer.is_hbm


def is_psum(buffer: Any) -> bool:
    """Whether `buffer` is PSUM."""
    return buffer is MemoryRegion.psum


def is_sbuf(buffer: Any) -> bool:
    """Whether `buffer` is SBUF."""
    return buffer is MemoryRegion.sbuf
