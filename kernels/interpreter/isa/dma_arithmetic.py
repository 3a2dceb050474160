"""DMA that transposes or adds on the way: dma_transpose and dma_compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.alu import alu_op
from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.dma import (
    RowView,
    check_dma_operand,
    count_rows,
    read_rows,
    write_rows,
)
from kernels.interpreter.isa.enums import dge_mode, oob_mode
from kernels.interpreter.isa.instruction import instruction
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.registers import VectorOffset
from kernels.interpreter.tensor import NkiTensor

__all__ = ["dma_compute", "dma_transpose"]

Array = npt.NDArray[Any]
_PERMUTATIONS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_MAX_SOURCES = 16


@instruction
def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: tuple[int, ...] | None = None,
    priority: int | None = None,
    dge_mode: dge_mode = dge_mode.unknown,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> None:
    """dst = src permuted by (1, 0), (2, 1, 0) or (3, 1, 2, 0); 2-byte dtypes.

    With a vector offset on src: the index tile's columns in order name the rows, which become
    dst's columns.
    """
    key = (dst.face, src.face, None if axes is None else tuple(axes))
    plan = _TRANSPOSE_PLANS[key]
    program = LOCAL.program
    assert program is not None
    values = _gathered(src, oob_mode) if src.face.indirect == "vector" else src.read("src")
    plan.run(dst.array, values)
    dst.wrote()
    count_rows(program, dst.face, src.face)
    program.count(plan)


def _gathered(src: NkiTensor, mode: oob_mode) -> Array:
    side = RowView(src, "src")
    assert side.valid is not None
    if not side.valid.all():
        offset = src.runtime_offset
        assert isinstance(offset, VectorOffset)
        refuse("src", "an index out of bounds", f"0..{offset.num_rows - 1}", "clamp the index")
    return read_rows(side, np.arange(len(side.valid)))


def _plan_transpose(dst: Face, src: Face, axes: tuple[int, ...] | None) -> Plan:
    check_dma_operand(dst, "dst")
    check_dma_operand(src, "src")
    rank = len(src.shape)
    permutation = _PERMUTATIONS.get(rank)
    if permutation is None:
        refuse("src", list(src.shape), "2, 3 or 4 dimensions")
    if axes is not None and axes != permutation:
        refuse("axes", list(axes), f"{list(permutation)} for {rank} dimensions")
    if src.dtype.device_itemsize != 2:
        refuse(
            "src",
            src.dtype,
            "2-byte dtypes",
            "use nc_transpose for 4 bytes; transpose 1-byte weights on the host",
        )
    if dst.dtype != src.dtype:
        refuse("dst", dst.dtype, f"the dtype of src, {src.dtype}")
    wanted = tuple(src.shape[axis] for axis in permutation)
    if dst.shape != wanted:
        refuse("dst", list(dst.shape), f"{list(wanted)}, the permuted shape of src")

    def run(out: Array, source: Array) -> None:
        np.copyto(out, source.transpose(permutation))

    return Plan("dma_transpose", "dma", run, dst, (src,))


@instruction
def dma_compute(
    dst: NkiTensor,
    srcs: Any,
    reduce_op: Callable[..., Any],
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> None:
    """dst = sum of scales[i] * srcs[i] in fp32, at most 16 sources.

    Sources and dst may carry vector offsets, as in a scatter-add whose dst is also a source.
    """
    tensors = tuple(srcs)
    factors = (1.0,) * len(tensors) if scales is None else tuple(float(s) for s in scales)
    if any(not isinstance(source, NkiTensor) for source in tensors):
        refuse("srcs", repr(srcs), "a list of tensors")
    plan = _COMPUTE_PLANS[dst.face, tuple(s.face for s in tensors), reduce_op, len(factors)]
    program = LOCAL.program
    assert program is not None
    into = RowView(dst, "dst")
    _check_unique(into, unique_indices)
    sides = [RowView(source, f"srcs[{i}]") for i, source in enumerate(tensors)]
    kept = _kept_rows(dst, [into, *sides], oob_mode)
    total = plan.run([read_rows(side, kept) for side in sides], factors)
    write_rows(into, kept, total)
    for source in tensors:
        count_rows(program, dst.face, source.face)
    program.count(plan)


def _check_unique(into: RowView, unique_indices: bool) -> None:
    if into.indices is None or not unique_indices:
        return
    if len(np.unique(into.indices)) != len(into.indices):
        refuse(
            "dst",
            "repeated indices",
            "unique indices with unique_indices=True",
            "add the repeated rows first",
        )


def _kept_rows(dst: NkiTensor, sides: list[RowView], mode: oob_mode) -> Array:
    keep = np.ones(dst.shape[0], np.bool_)
    for side in sides:
        if side.valid is None:
            continue
        if mode.name != "skip" and not side.valid.all():
            refuse("srcs", "an index out of bounds", "indices within the tensor", "clamp, or skip")
        keep &= side.valid
    return np.flatnonzero(keep)


def _plan_compute(dst: Face, srcs: tuple[Face, ...], op: Any, num_scales: int) -> Plan:
    if alu_op(op, "reduce_op").name != "add":
        refuse("reduce_op", getattr(op, "__name__", op), "nl.add")
    if not 1 <= len(srcs) <= _MAX_SOURCES:
        refuse("srcs", f"{len(srcs)} sources", f"1..{_MAX_SOURCES}")
    if num_scales != len(srcs):
        refuse("scales", f"{num_scales} scales", f"one for each of {len(srcs)} sources")
    check_dma_operand(dst, "dst")
    for i, src in enumerate(srcs):
        check_dma_operand(src, f"srcs[{i}]")
        if src.size != dst.size or src.shape[0] != dst.shape[0]:
            refuse(f"srcs[{i}]", list(src.shape), f"the shape of dst, {list(dst.shape)}")
    kind = dst.dtype.carrier

    def run(arrays: list[Array], factors: tuple[float, ...]) -> Array:
        total: Array | None = None
        for array, factor in zip(arrays, factors, strict=True):
            values = as_float32(np.ascontiguousarray(array), "a")
            values = values.reshape(-1, *dst.shape[1:]) * np.float32(factor)
            total = values if total is None else total + values
        assert total is not None
        out = np.empty(total.shape, kind)
        store_float32(out, total)
        return out

    return Plan("dma_compute", "dma", run, dst, srcs)


_TRANSPOSE_PLANS = Plans(_plan_transpose)
_COMPUTE_PLANS = Plans(_plan_compute)
