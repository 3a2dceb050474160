"""`nki.language`: tensors, dtypes, operation names, loops and eager helpers."""

from __future__ import annotations

from typing import Any

from kernels.interpreter import limits
from kernels.interpreter.allocation import allocate
from kernels.interpreter.current import LOCAL
from kernels.interpreter.dtypes import DTYPES, DType
from kernels.interpreter.errors import refuse
from kernels.interpreter.indexing import DynamicSlice
from kernels.interpreter.language.loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    sequential_range,
    static_range,
    while_loop,
)
from kernels.interpreter.language.operations import BINARY, UNARY
from kernels.interpreter.language.tile_size import tile_size
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.nki_object import NKIObject
from kernels.interpreter.program import current_program
from kernels.interpreter.tensor import NkiTensor

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
hbm = private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm


def ndarray(
    shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """An uninitialised tensor; dimension 0 is the partition dimension on chip."""
    return allocate(shape, dtype, buffer, name, address)


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


globals().update(DTYPES)
globals().update(BINARY)
globals().update(UNARY)
