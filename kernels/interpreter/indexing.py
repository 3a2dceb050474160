"""Slicing of tensors: ints, slices, `nl.ds`, ellipsis and run-time registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.interpreter.errors import refuse
from kernels.interpreter.registers import ScalarOffset, VirtualRegister

if TYPE_CHECKING:
    from kernels.interpreter.tensor import NkiTensor

__all__ = ["DynamicSlice", "index_view", "select_dim", "slice_dim"]


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """`nl.ds(start, size)`: a static size, a start that may be a register."""

    start: Any
    size: int


def index_view(tensor: NkiTensor, key: Any) -> NkiTensor:
    """`tensor[key]`."""
    keys = key if type(key) is tuple else (key,)
    rank = len(tensor.shape)
    if Ellipsis in keys or len(keys) != rank:
        keys = _expanded(keys, rank)
    shape: list[int] = []
    strides: list[int] = []
    offset = tensor.offset
    runtime = None
    on_chip = tensor.on_chip
    for dim, item in enumerate(keys):
        extent, stride = tensor.shape[dim], tensor.strides[dim]
        if type(item) is slice:
            start, count, step = _bounds(item, extent, dim)
            offset += start * stride
            shape.append(count)
            strides.append(stride * step)
            continue
        if type(item) is DynamicSlice:
            if not isinstance(item.start, int):
                runtime = _runtime(tensor, item.start, stride, extent - item.size, runtime)
            else:
                _check_range(item.start, item.start + item.size, extent, dim)
                offset += item.start * stride
            shape.append(item.size)
            strides.append(stride)
            continue
        if isinstance(item, VirtualRegister):
            runtime = _runtime(tensor, item, stride, extent - 1, runtime)
        else:
            offset += _index(item, extent, dim) * stride
        if on_chip and (dim == 0 or (dim == rank - 1 and len(shape) < 2)):
            shape.append(1)
            strides.append(stride)
    return tensor.derived(tuple(shape), tuple(strides), offset, None, runtime)


def slice_dim(tensor: NkiTensor, dim: int, start: Any, end: int | None, step: int) -> NkiTensor:
    """`tensor[:, …, start:end:step]` on dimension `dim`."""
    keys: list[Any] = [slice(None)] * len(tensor.shape)
    if isinstance(start, VirtualRegister) and end is not None:
        refuse("start", start, "an int", "use nl.ds(register, size) for a run-time start")
    keys[dim] = slice(start, end, step)
    return index_view(tensor, tuple(keys))


def select_dim(tensor: NkiTensor, dim: int, index: Any) -> NkiTensor:
    """`tensor[:, …, index]` on dimension `dim`."""
    keys: list[Any] = [slice(None)] * len(tensor.shape)
    keys[dim] = index
    return index_view(tensor, tuple(keys))


def _expanded(keys: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    given = sum(1 for key in keys if key is not Ellipsis)
    if given > rank:
        refuse("index", f"{given} subscripts", f"the tensor has {rank} dimensions")
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        return (*keys[:at], *([slice(None)] * (rank - given)), *keys[at + 1 :])
    return (*keys, *([slice(None)] * (rank - given)))


def _bounds(item: slice, extent: int, dim: int) -> tuple[int, int, int]:
    if item == slice(None):
        return 0, extent, 1
    for part in (item.start, item.stop, item.step):
        if isinstance(part, VirtualRegister):
            refuse("index", "a slice by a register", "static bounds", "use nl.ds(register, size)")
    step = 1 if item.step is None else int(item.step)
    if step < 1:
        refuse("index", item, "a positive step")
    start = 0 if item.start is None else int(item.start)
    stop = extent if item.stop is None else int(item.stop)
    start = start + extent if start < 0 else start
    stop = stop + extent if stop < 0 else stop
    _check_range(start, stop, extent, dim)
    return start, max(0, -(-(stop - start) // step)), step


def _check_range(start: int, stop: int, extent: int, dim: int) -> None:
    if not (0 <= start <= extent and stop <= extent):
        refuse(
            "index",
            f"{start}:{stop} on dimension {dim}",
            f"dimension {dim} has {extent} elements; NKI does not clamp",
            "use min(stop, extent) for the tail tile",
        )


def _index(item: Any, extent: int, dim: int) -> int:
    try:
        value = int(item.__index__())
    except AttributeError:
        refuse("index", repr(item), "an int, slice, nl.ds, … or register")
    if not -extent <= value < extent:
        refuse("index", f"{value} on dimension {dim}", f"dimension {dim} has {extent} elements")
    return value + extent if value < 0 else value


def _runtime(
    tensor: NkiTensor, source: Any, scale: int, limit: int, earlier: ScalarOffset | None
) -> ScalarOffset:
    if earlier is not None or tensor.runtime_offset is not None:
        refuse("index", "two run-time offsets", "one run-time offset a view")
    return ScalarOffset(source, scale, limit)
