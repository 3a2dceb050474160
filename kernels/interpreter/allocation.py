"""`nl.ndarray`: handing out memory, within what a core has."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.interpreter import limits
from kernels.interpreter.dtypes import DType, dtype_of, widened
from kernels.interpreter.errors import kernel_location, refuse
from kernels.interpreter.memory import Lifetime, MemoryRegion, Storage
from kernels.interpreter.pool import take
from kernels.interpreter.program import Program, current_program
from kernels.interpreter.strides import contiguous_strides, product
from kernels.interpreter.tensor import NkiTensor

__all__ = ["allocate", "checked_shape", "input_tensor"]


def checked_shape(shape: Any) -> tuple[int, ...]:
    """`shape` as ints; extents are 0 or more."""
    if isinstance(shape, int):
        shape = (shape,)
    try:
        extents = tuple(int(extent.__index__()) for extent in shape)
    except (AttributeError, TypeError):
        refuse("shape", repr(shape), "a tuple of ints", instruction="nl.ndarray")
    if any(extent < 0 for extent in extents):
        refuse("shape", list(extents), "extents of 0 or more", instruction="nl.ndarray")
    return extents


def allocate(shape: Any, dtype: object, region: object, name: str, address: object) -> NkiTensor:
    """A fresh, unwritten tensor.

    Raises:
        NkiValidationError: more partitions or bytes than the memory has, or a dtype trn2 lacks.
    """
    program = current_program("nl.ndarray")
    kind = dtype_of(dtype)
    if kind is None:
        refuse("dtype", repr(dtype), "a dtype of nki.language", instruction="nl.ndarray")
    if not isinstance(region, MemoryRegion):
        refuse(
            "buffer",
            repr(region),
            "nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm",
            instruction="nl.ndarray",
        )
    extents = checked_shape(shape)
    if not program.launch.precise:
        kind = widened(kind)
    if region is MemoryRegion.shared_hbm:
        storage = _shared(program, extents, kind, name)
    elif region.is_hbm:
        storage = _hbm_storage(program, region, extents, kind, name)
    else:
        storage = _chip_storage(program, region, extents, kind, name)
    return NkiTensor(storage, extents, contiguous_strides(extents), 0, kind, name)


def input_tensor(array: np.ndarray[Any, Any], kind: DType, name: str) -> NkiTensor:
    """An HBM tensor over the bytes of a C-contiguous array of the host."""
    flat = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    storage = Storage(
        MemoryRegion.shared_hbm,
        flat,
        partitions=1,
        granule=kind.itemsize,
        written=True,
        name=name,
        site="kernel argument",
    )
    return NkiTensor(storage, array.shape, contiguous_strides(array.shape), 0, kind, name)


def _shared(program: Program, shape: tuple[int, ...], kind: DType, name: str) -> Storage:
    launch = program.launch
    index = program.next_shared
    program.next_shared += 1
    if index == len(launch.shared):
        storage = _hbm_storage(program, MemoryRegion.shared_hbm, shape, kind, name)
        launch.watch_races(storage, kind)
        launch.shared.append((shape, kind, storage))
        return storage
    other_shape, other_kind, storage = launch.shared[index]
    if other_shape != shape or other_kind != kind:
        refuse(
            "shape",
            f"{kind} {list(shape)} in program {program.index}",
            f"the same allocation of program 0 is {other_kind} {list(other_shape)}",
            "allocate shared_hbm in the same order and shape on both cores",
            instruction="nl.ndarray",
        )
    return storage


def _hbm_storage(
    program: Program, region: MemoryRegion, shape: tuple[int, ...], kind: DType, name: str
) -> Storage:
    return Storage(
        region,
        program.launch.poisoned_bytes(shape, kind),
        partitions=1,
        granule=kind.itemsize,
        written=False,
        name=name,
        site=kernel_location(),
    )


def _chip_storage(
    program: Program, region: MemoryRegion, shape: tuple[int, ...], kind: DType, name: str
) -> Storage:
    _check_chip_shape(region, shape, kind)
    partition_bytes = product(shape[1:]) * kind.itemsize
    device_bytes = product(shape[1:]) * kind.device_itemsize
    lifetime = Lifetime(region, device_bytes, kernel_location(), name, program)
    program.lifetimes.append(lifetime)
    return Storage(
        region,
        take(partition_bytes * shape[0]),
        partitions=shape[0],
        granule=kind.itemsize,
        written=False,
        name=name,
        site=lifetime.site,
        lifetime=lifetime,
    )


def _check_chip_shape(region: MemoryRegion, shape: tuple[int, ...], kind: DType) -> None:
    if len(shape) < 2:
        refuse(
            "shape",
            list(shape),
            f"at least 2 dimensions in {region}: partitions and elements",
            "use (1, n) or (n, 1)",
            instruction="nl.ndarray",
        )
    if shape[0] > limits.MAX_PARTITIONS:
        refuse(
            "shape",
            f"{list(shape)} with {shape[0]} partitions",
            f"{region} has {limits.MAX_PARTITIONS} partitions",
            "tile dimension 0 by nl.tile_size.pmax",
            instruction="nl.ndarray",
        )
    used = product(shape[1:]) * kind.device_itemsize
    capacity = limits.SBUF_USABLE_BYTES
    if region is MemoryRegion.psum:
        capacity = limits.PSUM_PARTITION_BYTES
    if used > capacity:
        refuse(
            "shape",
            f"{kind} {list(shape)}, {used} bytes a partition",
            f"{region} has {capacity} bytes a partition",
            "tile the free dimension",
            instruction="nl.ndarray",
        )
