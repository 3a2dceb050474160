"""Counting and partition-crossing instructions of the GpSimd engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.alu import alu_op
from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.instruction import (
    SBUF,
    check_compute_operand,
    check_equal_partitions,
    check_free_size,
    instruction,
)
from kernels.interpreter.isa.reduction import REDUCERS
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["nonzero_with_count", "sequence_bounds", "tensor_partition_reduce"]

Array = npt.NDArray[Any]
_CORE_PARTITIONS = 16
_BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


@instruction
def nonzero_with_count(
    dst: NkiTensor,
    src: NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> None:
    """Positions of non-zero elements, then padding, then their count, on partitions 0, 16, … 112.

    dst is int32 with one element more than src; its other partitions stay as they are.
    """
    plan = _NONZERO_PLANS[dst.face, src.face]
    rows = range(0, src.face.partitions, _CORE_PARTITIONS)
    for row in rows:
        source, target = src[row : row + 1], dst[row : row + 1]
        plan.run(target.array, source.read("src"), index_offset, padding_val)
        target.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_nonzero(dst: Face, src: Face) -> Plan:
    check_compute_operand(dst, "dst", (SBUF,))
    check_compute_operand(src, "src", (SBUF,))
    check_equal_partitions(("src", src), ("dst", dst))
    if dst.dtype.name != "int32":
        refuse("dst", dst.dtype, "int32")
    if dst.free_size != src.free_size + 1:
        refuse("dst", list(dst.shape), f"{src.free_size + 1} elements a partition")

    def run(out: Array, source: Array, index_offset: int, padding: int) -> None:
        found = np.flatnonzero(as_float32(source, "a").reshape(-1))
        row = np.full(src.free_size + 1, padding, np.int64)
        row[: len(found)] = found + index_offset
        row[-1] = len(found)
        out[...] = row.astype(np.int32).reshape(out.shape)

    return Plan("nonzero_with_count", "gpsimd", run, dst, (src,))


@instruction
def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> None:
    """Start (dst[p, 0, i]) and end (dst[p, 1, i], exclusive) of the run of ids that holds i.

    Id 0 is padding: start is the number of elements, end is -1.
    """
    plan = _BOUNDS_PLANS[dst.face, segment_ids.face]
    plan.run(dst.array, segment_ids.read("segment_ids"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_bounds(dst: Face, ids: Face) -> Plan:
    check_compute_operand(dst, "dst", (SBUF,))
    check_compute_operand(ids, "segment_ids", (SBUF,))
    check_equal_partitions(("segment_ids", ids), ("dst", dst))
    for operand, face in (("dst", dst), ("segment_ids", ids)):
        if face.dtype.name not in ("float32", "int32"):
            refuse(operand, face.dtype, "float32 or int32")
    if dst.free_size != 2 * ids.free_size:
        refuse("dst", list(dst.shape), f"[{ids.partitions}, 2, {ids.free_size}]")

    def run(out: Array, source: Array) -> None:
        values = source.reshape(ids.partitions, -1)
        num = values.shape[1]
        bounds = np.empty((ids.partitions, 2, num), np.float32)
        for row, line in enumerate(values):
            changes = np.flatnonzero(line[1:] != line[:-1]) + 1
            edges = [0, *changes.tolist(), num]
            for start, end in itertools.pairwise(edges):
                is_padding = line[start] == 0
                bounds[row, 0, start:end] = num if is_padding else start
                bounds[row, 1, start:end] = -1 if is_padding else end
        store_float32(out, bounds.reshape(dst.shape))

    return Plan("sequence_bounds", "gpsimd", run, dst, (ids,))


@instruction
def tensor_partition_reduce(
    dst: NkiTensor, op: Callable[..., Any], data: NkiTensor, name: str | None = None
) -> None:
    """dst[1, F] = data reduced over its partitions."""
    plan = _PARTITION_PLANS[dst.face, op, data.face]
    plan.run(dst.array, data.read("data"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_partition(dst: Face, op: Any, data: Face) -> Plan:
    alu = alu_op(op)
    check_compute_operand(dst, "dst", (SBUF,))
    check_compute_operand(data, "data", (SBUF,))
    check_free_size(("dst", dst), ("data", data))
    if dst.partitions != 1:
        refuse("dst", f"{dst.partitions} partitions", "1 partition")
    if alu.name in _BITS:
        if not (data.dtype.is_integer and dst.dtype.is_integer):
            refuse("data", data.dtype, "bitwise operations take integer dtypes")
        ufunc, is_bits = _BITS[alu.name], True
    elif alu.name in ("add", "maximum"):
        ufunc, is_bits = REDUCERS[alu.name], False
    else:
        refuse("op", f"nl.{alu.name}", "add, maximum, bitwise_and, bitwise_or or bitwise_xor")

    def run(out: Array, source: Array) -> None:
        if is_bits:
            result = ufunc.reduce(source.astype(np.int64), axis=0)
            np.copyto(out, result.reshape(dst.shape), casting="unsafe")
        else:
            result = ufunc.reduce(as_float32(source, "a"), axis=0)
            store_float32(out, np.ascontiguousarray(result).reshape(dst.shape))

    return Plan("tensor_partition_reduce", "gpsimd", run, dst, (data,))


_NONZERO_PLANS = Plans(_plan_nonzero)
_BOUNDS_PLANS = Plans(_plan_bounds)
_PARTITION_PLANS = Plans(_plan_partition)
