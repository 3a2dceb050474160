"""Eager helpers that move and rearrange whole tiles. Each issues one or a few instructions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernels.interpreter import isa
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.language.creation import ndarray
from kernels.interpreter.language.operations import BINARY
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.tensor import NkiTensor

__all__ = [
    "broadcast_to",
    "device_print",
    "dropout",
    "expand_dims",
    "gather_flattened",
    "load",
    "load_transpose2d",
    "matmul",
    "no_reorder",
    "store",
    "transpose",
    "where",
]


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """An HBM tensor as an SBUF tile; a vector becomes one partition."""
    shape = src.shape if len(src.shape) > 1 else (1, *src.shape)
    tile = ndarray(shape, dtype or src.dtype)
    isa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """An SBUF tile to HBM."""
    if isinstance(value, NkiTensor) and value.buffer is MemoryRegion.psum:
        refuse(
            "value",
            "in psum",
            "a tile in SBUF",
            "tensor_copy it to SBUF first",
            instruction="nl.store",
        )
    isa.dma_copy(dst=dst, src=value)


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with a dimension of extent 1."""
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """A stride-0 view of free dimensions with extent 1; copied only if dtype changes."""
    wanted = tuple(shape)
    view = x
    if len(wanted) != len(x.shape):
        refuse("shape", list(wanted), f"{len(x.shape)} dimensions", instruction="nl.broadcast_to")
    for dim, extent in enumerate(wanted):
        if view.shape[dim] != extent:
            view = view.broadcast(dim, extent)
    if dtype is None or view.dtype == dtype:
        return view
    out = ndarray(wanted, dtype)
    isa.tensor_copy(dst=out, src=view)
    return out


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The 2-D transpose as an SBUF tile; at most 128 x 128."""
    if len(x.shape) != 2:
        refuse("x", list(x.shape), "2 dimensions", instruction="nl.transpose")
    rows, columns = x.shape
    out = ndarray((columns, rows), dtype or x.dtype)
    turned = ndarray((columns, rows), x.dtype, MemoryRegion.psum)
    isa.nc_transpose(dst=turned, data=x)
    isa.tensor_copy(dst=out, src=turned)
    return out


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The transpose of a 2-D HBM tensor as an SBUF tile."""
    if len(src.shape) != 2:
        refuse("src", list(src.shape), "2 dimensions", instruction="nl.load_transpose2d")
    if src.dtype.device_itemsize != 2:
        return transpose(load(src), dtype)
    tile = ndarray((src.shape[1], src.shape[0]), src.dtype)
    isa.dma_transpose(dst=tile, src=src)
    if dtype is None or tile.dtype == dtype:
        return tile
    out = ndarray(tile.shape, dtype)
    isa.tensor_copy(dst=out, src=tile)
    return out


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x.T @ y in PSUM, x [K, M] and y [K, N]; only transpose_x=True."""
    if not transpose_x:
        refuse(
            "transpose_x",
            False,
            "True: the tensor engine contracts over partitions",
            "load x transposed",
            instruction="nl.matmul",
        )
    out = ndarray((x.shape[1], y.shape[1]), "float32", MemoryRegion.psum)
    isa.nc_matmul(dst=out, stationary=x, moving=y)
    return out


def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None
) -> NkiTensor:
    """Per partition: data's flattened free elements at `indices` (uint32)."""
    out = ndarray(indices.shape, data.dtype)
    isa.nc_n_gather(dst=out, data=data, indices=indices)
    if dtype is None or out.dtype == dtype:
        return out
    converted = ndarray(indices.shape, dtype)
    isa.tensor_copy(dst=converted, src=out)
    return converted


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where condition is non-zero, else y; tiles or numbers."""
    like = x if isinstance(x, NkiTensor) else y if isinstance(y, NkiTensor) else condition
    out = ndarray(condition.shape, dtype or like.dtype)
    mask = ndarray(condition.shape, "uint8")
    isa.tensor_scalar(dst=mask, data=condition, op0=BINARY["not_equal"], operand0=0)
    if isinstance(y, NkiTensor):
        isa.tensor_copy(dst=out, src=y)
    else:
        isa.memset(dst=out, value=y)
    if isinstance(x, NkiTensor) and x.dtype != out.dtype:
        converted = ndarray(x.shape, out.dtype)
        isa.tensor_copy(dst=converted, src=x)
        x = converted
    isa.tensor_copy_predicated(dst=out, src=x, predicate=mask)
    return out


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """x with elements set to 0 with probability `rate`."""
    out = ndarray(x.shape, dtype or x.dtype)
    isa.dropout(dst=out, data=x, prob=rate)
    return out


@contextmanager
def no_reorder() -> Iterator[None]:
    """Keep program order; here it always holds."""
    yield


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor's values."""
    program = LOCAL.program
    index = 0
    if program is not None:
        index = program.index
        program.forbid_replay()
    print(f"[core {index}] {print_prefix} {tensor.read('tensor')}")
