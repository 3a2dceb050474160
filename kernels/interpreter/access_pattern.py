"""`.ap`: addressing a storage by strides and counts, with run-time offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernels.interpreter.dtypes import DType
from kernels.interpreter.errors import refuse
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.registers import ScalarOffset, VectorOffset, VirtualRegister
from kernels.interpreter.strides import product

if TYPE_CHECKING:
    from kernels.interpreter.tensor import NkiTensor

__all__ = ["ap", "vector_select"]


def ap(
    tensor: NkiTensor,
    pattern: Any,
    offset: int | None,
    scalar_offset: Any,
    vector_offset: NkiTensor | None,
    indirect_dim: int,
    dtype: DType | None,
) -> NkiTensor:
    """The view of [[stride, count], …] over the storage of `tensor`."""
    if tensor.offset != 0:
        refuse(
            ".ap",
            "called on a sliced view",
            "documents disagree on whether the slice's offset counts",
            "call .ap on the whole tensor and pass offset=",
        )
    kind = dtype or tensor.dtype
    strides, shape = _checked_pattern(pattern)
    base = 0 if offset is None else int(offset)
    if tensor.on_chip:
        _check_on_chip(tensor, kind, strides, shape)
    if scalar_offset is not None and vector_offset is not None:
        refuse("vector_offset", "given with scalar_offset", "one run-time offset a view")
    if vector_offset is not None:
        return _vector(tensor, strides, shape, base, vector_offset, indirect_dim, kind)
    _check_addresses(tensor, kind, strides, shape, base)
    runtime = None
    if scalar_offset is not None:
        runtime = _scalar(tensor, strides, shape, base, scalar_offset, indirect_dim, kind)
    return tensor.derived(shape, strides, base, kind, runtime)


def vector_select(tensor: NkiTensor, dim: int, vector_offset: NkiTensor) -> NkiTensor:
    """Dimension `dim` (0) of an HBM tensor indexed by a (P, 1) tile."""
    rows = vector_offset.shape[0]
    shape = (rows, *tensor.shape[1:])
    return _vector(tensor, tensor.strides, shape, tensor.offset, vector_offset, dim, tensor.dtype)


def _checked_pattern(pattern: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    try:
        pairs = [(int(stride), int(count)) for stride, count in pattern]
    except (TypeError, ValueError):
        refuse("pattern", pattern, "[[stride, count], …] of ints")
    if not pairs or any(count < 0 for _, count in pairs):
        refuse("pattern", pattern, "at least one pair and counts of 0 or more")
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _check_on_chip(
    tensor: NkiTensor, kind: DType, strides: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    free = tensor.storage.partition_bytes // kind.itemsize
    if len(shape) < 2:
        refuse("pattern", [list(strides), list(shape)], "at least 2 dimensions on chip")
    if strides[0] != free and shape[0] > 1:
        refuse(
            "pattern",
            f"first pair {[strides[0], shape[0]]}",
            f"the partition stride of this storage is {free} {kind} elements",
            "partitions cannot be strided or broadcast on chip",
        )


def _check_addresses(
    tensor: NkiTensor, kind: DType, strides: tuple[int, ...], shape: tuple[int, ...], base: int
) -> None:
    if 0 in shape:
        return
    steps = [stride * (count - 1) for stride, count in zip(strides, shape, strict=True)]
    low = base + sum(step for step in steps if step < 0)
    high = base + sum(step for step in steps if step > 0)
    total = tensor.storage.nbytes // kind.itemsize
    if low < 0 or high >= total:
        refuse("pattern", f"addresses {low}..{high}", f"the storage has {total} {kind} elements")
    if tensor.on_chip:
        free = tensor.storage.partition_bytes // kind.itemsize
        reach = high - (shape[0] - 1) * free
        if base // free != reach // free and shape[0] <= tensor.storage.partitions:
            refuse("pattern", f"free addresses up to {reach}", f"a partition has {free} elements")


def _scalar(
    tensor: NkiTensor,
    strides: tuple[int, ...],
    shape: tuple[int, ...],
    base: int,
    source: Any,
    dim: int,
    kind: DType,
) -> ScalarOffset:
    if not isinstance(source, VirtualRegister):
        _check_index_tile(source, "scalar_offset", (1, 1))
    scale = tensor.strides[dim]
    steps = [stride * (count - 1) for stride, count in zip(strides, shape, strict=True)]
    reach = base + sum(step for step in steps if step > 0)
    if tensor.on_chip:
        if dim == 0:
            refuse("indirect_dim", 0, "a free dimension on chip")
        total = tensor.storage.partition_bytes // kind.itemsize
        reach -= (shape[0] - 1) * strides[0]
        reach %= max(total, 1)
    else:
        total = tensor.storage.nbytes // kind.itemsize
    return ScalarOffset(source, scale, (total - 1 - reach) // max(scale, 1))


def _vector(
    tensor: NkiTensor,
    strides: tuple[int, ...],
    shape: tuple[int, ...],
    base: int,
    indices: NkiTensor,
    dim: int,
    kind: DType,
) -> NkiTensor:
    if tensor.on_chip:
        refuse("vector_offset", f"on {tensor.buffer}", "an HBM tensor")
    if dim != 0:
        refuse("indirect_dim", dim, "0 with vector_offset")
    _check_index_tile(indices, "vector_offset", (shape[0], 1))
    scale = tensor.strides[0]
    inner = base + sum(
        stride * (count - 1) for stride, count in zip(strides[1:], shape[1:], strict=True)
    )
    total = tensor.storage.nbytes // kind.itemsize
    num_rows = max(0, (total - 1 - inner) // max(scale, 1) + 1)
    # Row i's own stride is ignored: its address comes from the index alone.
    return tensor.derived(
        shape, (0, *strides[1:]), base, kind, VectorOffset(indices, scale, num_rows)
    )


def _check_index_tile(tile: Any, operand: str, shape: tuple[int, ...]) -> None:
    region = getattr(tile, "buffer", None)
    if region is not MemoryRegion.sbuf:
        refuse(operand, repr(tile), "a register or an index tile in SBUF")
    if tile.dtype.name not in ("int32", "uint32"):
        refuse(operand, tile.dtype, "int32 or uint32")
    if product(tile.shape) != product(shape) or tile.shape[0] != shape[0]:
        refuse(operand, f"shape {list(tile.shape)}", f"shape {list(shape)}")
