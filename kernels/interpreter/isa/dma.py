"""dma_copy: between HBM and SBUF, with run-time row indices on either side."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import dge_mode, engine, oob_mode
from kernels.interpreter.isa.instruction import PSUM, instruction
from kernels.interpreter.isa.movement import copy_runner
from kernels.interpreter.memory import ByteRange
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.registers import VectorOffset
from kernels.interpreter.tensor import NkiTensor

__all__ = [
    "RowView",
    "check_dma_operand",
    "count_rows",
    "dma_copy",
    "read_rows",
    "row_views",
    "write_rows",
]

Array = npt.NDArray[Any]
_EFFICIENT_ROW_BYTES = 2048


@instruction
def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: oob_mode = oob_mode.error,
    dge_mode: dge_mode = dge_mode.unknown,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> None:
    """dst = src between HBM and SBUF; same element count, dtypes convert through fp32.

    Either side may carry a vector offset. An index out of bounds is refused, or with
    oob_mode.skip leaves that row of dst as it was.
    """
    key = (dst.face, src.face, dge_mode)
    plan = _COPY_PLANS[key]
    program = LOCAL.program
    assert program is not None
    if dst.face.indirect == "vector" or src.face.indirect == "vector":
        _copy_rows(dst, src, oob_mode)
    elif oob_mode.name == "skip" and not _in_bounds(dst, src):
        pass
    else:
        plan.run(dst.array, src.read("src"))
        dst.wrote()
    count_rows(program, dst.face, src.face)
    program.count(plan)


def check_dma_operand(face: Face, operand: str) -> None:
    """DMA reaches HBM and SBUF."""
    if face.region is PSUM:
        refuse(operand, "in psum", "DMA cannot reach PSUM", "tensor_copy between PSUM and SBUF")


def _plan_copy(dst: Face, src: Face, mode: dge_mode) -> Plan:
    check_dma_operand(dst, "dst")
    check_dma_operand(src, "src")
    if dst.size != src.size:
        refuse(
            "src",
            f"{list(src.shape)}, {src.size} elements",
            f"dst {list(dst.shape)} has {dst.size}",
            "slice both to the same tail",
        )
    _check_mode(mode, dst, src)
    return Plan("dma_copy", "dma", copy_runner(dst, src), dst, (src,))


def _check_mode(mode: dge_mode, dst: Face, src: Face) -> None:
    if getattr(mode, "name", None) not in ("unknown", "swdge", "hwdge", "none"):
        refuse("dge_mode", repr(mode), "unknown, swdge, hwdge or none")
    if mode.name == "hwdge" and dst.dtype != src.dtype:
        refuse("dge_mode", "hwdge", f"no dtype change ({src.dtype} to {dst.dtype})", "use swdge")
    if mode.name in ("hwdge", "none") and "vector" in (dst.indirect, src.indirect):
        refuse("dge_mode", mode.name, "vector offsets are served by swdge only")


def count_rows(program: Any, dst: Face, src: Face) -> None:
    """Descriptor rows of this transfer, and those below the efficient size."""
    row = max(1, min(dst.row_bytes, src.row_bytes))
    rows = max(1, -(-dst.nbytes // row))
    program.dma_rows += rows
    if row < _EFFICIENT_ROW_BYTES:
        program.small_dma_rows += rows


# -- rows chosen at run time ----------------------------------------------------------------


class RowView:
    """One side of an indirect transfer, row by row."""

    __slots__ = ("indices", "tensor", "valid")

    def __init__(self, tensor: NkiTensor, operand: str) -> None:
        self.tensor = tensor
        offset = tensor.runtime_offset
        self.indices: Array | None = None
        self.valid: Array | None = None
        if isinstance(offset, VectorOffset):
            found = offset.indices.read(f"{operand} vector_offset").reshape(-1).astype(np.int64)
            self.indices = found
            self.valid = (found >= 0) & (found < offset.num_rows)

    def rows(self) -> Array:
        """All rows the indices can reach, as an array [num_rows, …]; else the view itself."""
        tensor, offset = self.tensor, self.tensor.runtime_offset
        if not isinstance(offset, VectorOffset):
            return tensor.array
        return np.ndarray(
            (offset.num_rows, *tensor.shape[1:]),
            tensor.dtype.carrier,
            tensor.storage.buffer,
            tensor.offset * tensor.itemsize,
            tuple(stride * tensor.itemsize for stride in (offset.scale, *tensor.strides[1:])),
        )

    def cells(self, index: int) -> ByteRange:
        """The cells of run-time row `index`."""
        tensor, offset = self.tensor, self.tensor.runtime_offset
        assert isinstance(offset, VectorOffset)
        size = tensor.itemsize
        return ByteRange(
            tensor.shape[1:],
            tuple(stride * size for stride in tensor.strides[1:]),
            (tensor.offset + index * offset.scale) * size,
            size,
        )


def row_views(dst: NkiTensor, src: NkiTensor, mode: oob_mode) -> tuple[RowView, RowView, Array]:
    """Both sides and the row numbers that take part.

    Raises:
        NkiValidationError: an index is out of bounds and mode is error.
    """
    into, source = RowView(dst, "dst"), RowView(src, "src")
    keep = np.ones(dst.shape[0], np.bool_)
    for side, operand in ((into, "dst"), (source, "src")):
        if side.valid is None:
            continue
        if len(side.valid) != len(keep):
            refuse(
                operand, f"{len(side.valid)} indexed rows", f"{len(keep)} rows on the other side"
            )
        if mode.name != "skip" and not side.valid.all():
            at = int(np.argmin(side.valid))
            offset = side.tensor.runtime_offset
            assert isinstance(offset, VectorOffset)
            assert side.indices is not None
            refuse(
                operand,
                f"index {int(side.indices[at])} in row {at}",
                f"0..{offset.num_rows - 1}",
                "clamp the index, or use oob_mode.skip",
            )
        keep &= side.valid
    return into, source, np.flatnonzero(keep)


def _copy_rows(dst: NkiTensor, src: NkiTensor, mode: oob_mode) -> None:
    if dst.shape[0] != src.shape[0]:
        refuse("src", list(src.shape), f"as many rows as dst {list(dst.shape)}")
    into, source, kept = row_views(dst, src, mode)
    values = read_rows(source, kept)
    if dst.dtype != src.dtype:
        values = _converted(values, dst)
    write_rows(into, kept, values)


def write_rows(into: RowView, kept: Array, values: Array) -> None:
    """Row i of `values` becomes row kept[i] of the destination."""
    dst = into.tensor
    values = values.reshape(len(kept), *dst.shape[1:])
    if into.indices is not None:
        into.rows()[into.indices[kept]] = values
        for index in into.indices[kept]:
            dst.storage.note_write(into.cells(int(index)), False)
        return
    if len(kept) == dst.shape[0]:
        np.copyto(dst.array, values)
        dst.wrote()
        return
    dst.array[kept] = values
    for row in kept:
        _row_of(dst, int(row)).wrote()


def read_rows(side: RowView, kept: Array) -> Array:
    """Rows kept[i] of a source, gathered where it is indirect; each was written."""
    tensor = side.tensor
    if side.indices is None:
        if len(kept) == tensor.shape[0]:
            return tensor.read("src")
        for row in kept:
            _row_of(tensor, int(row)).read("src")
        return tensor.array[kept]
    chosen = side.indices[kept]
    races = tensor.storage.races
    if races is not None:
        for index in np.unique(chosen):
            races.note_read(side.cells(int(index)))
    if not tensor.storage.is_fully_written:
        for index in np.unique(chosen):
            if not tensor.storage.holds(side.cells(int(index))):
                refuse(
                    "src",
                    f"row {int(index)} of {tensor.face}, never written",
                    "reading unwritten memory is undefined",
                )
    gathered: Array = side.rows()[chosen]
    return gathered


def _row_of(tensor: NkiTensor, row: int) -> NkiTensor:
    return tensor.derived(
        (1, *tensor.shape[1:]), tensor.strides, tensor.offset + row * tensor.strides[0]
    )


def _converted(values: Array, dst: NkiTensor) -> Array:
    out = np.empty(values.shape, dst.dtype.carrier)
    store_float32(out, as_float32(np.ascontiguousarray(values), "a"))
    return out


def _in_bounds(dst: NkiTensor, src: NkiTensor) -> bool:
    for tensor in (dst, src):
        offset = tensor.runtime_offset
        if (
            offset is not None
            and not isinstance(offset, VectorOffset)
            and not (0 <= offset.value() <= offset.limit)
        ):
            return False
    return True


_COPY_PLANS = Plans(_plan_copy)
