"""Reductions along the free dimensions."""

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
from kernels.interpreter.isa.instruction import (
    check_compute_operand,
    check_equal_partitions,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["REDUCERS", "reduce_ufunc", "tensor_reduce"]

Array = npt.NDArray[Any]
REDUCERS: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_LOGICAL = {"logical_and": np.logical_and, "logical_or": np.logical_or}
_BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def reduce_ufunc(op: Any, operand: str = "reduce_op") -> Any:
    """numpy's ufunc for an fp32 reduction by `op`.

    Raises:
        NkiValidationError: not add, multiply, maximum or minimum.
    """
    name = alu_op(op, operand).name
    if name not in REDUCERS:
        refuse(operand, f"nl.{name}", f"one of {', '.join(REDUCERS)}")
    return REDUCERS[name]


@instruction
def tensor_reduce(
    dst: NkiTensor,
    op: Callable[..., Any],
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> None:
    """Reduce the trailing free axes `axis` of data; the axes are literal positions."""
    axes = axis if isinstance(axis, int) else tuple(axis)
    key = (dst.face, data.face, op, axes, negate)
    plan = _REDUCE_PLANS[key]
    plan.run(dst.array, data.read("data"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _trailing_axes(data: Face, axis: int | tuple[int, ...]) -> tuple[int, ...]:
    rank = len(data.shape)
    axes = (axis,) if isinstance(axis, int) else axis
    if any(not -rank <= item < rank for item in axes):
        refuse("axis", list(axes), f"data has {rank} dimensions")
    axes = tuple(sorted(item % rank for item in axes))
    if not axes or axes != tuple(range(rank - len(axes), rank)) or axes[0] == 0:
        refuse(
            "axis",
            list(axes),
            "the trailing free axes, without the partition axis 0",
            "permute the view so that the reduced axes come last; reduce over partitions with a "
            "matmul by ones",
        )
    return axes


def _plan_reduce(dst: Face, data: Face, op: Any, axis: int | tuple[int, ...], negate: bool) -> Plan:
    alu = alu_op(op)
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_equal_partitions(("dst", dst), ("data", data))
    axes = _trailing_axes(data, axis)
    kept = 1
    for extent in data.shape[1 : axes[0]]:
        kept *= extent
    if dst.free_size != kept:
        refuse("dst", list(dst.shape), f"{kept} elements a partition remain of {list(data.shape)}")
    if data.free_size == 0:
        refuse("data", list(data.shape), "at least one element to reduce")
    shape = dst.shape
    if alu.name in _BITS:
        run = _bits_reduction(_BITS[alu.name], axes, dst, data)
    elif alu.name in REDUCERS or alu.name in _LOGICAL:
        ufunc = REDUCERS.get(alu.name) or _LOGICAL[alu.name]
        sign = -1.0 if negate else 1.0

        def run(out: Array, source: Array) -> None:
            result = ufunc.reduce(as_float32(source, "a"), axis=axes)
            result = np.asarray(result, np.float32).reshape(shape)
            store_float32(out, result * np.float32(sign) if negate else result)

    else:
        names = ", ".join((*REDUCERS, *_LOGICAL, *_BITS))
        refuse("op", f"nl.{alu.name}", f"one of {names}")
    return Plan("tensor_reduce", "vector", run, dst, (data,))


def _bits_reduction(
    ufunc: Any, axes: tuple[int, ...], dst: Face, data: Face
) -> Callable[[Array, Array], None]:
    if not (dst.dtype.is_integer and data.dtype.is_integer):
        refuse("data", data.dtype, "bitwise operations take integer dtypes")

    def run(out: Array, source: Array) -> None:
        result = ufunc.reduce(source.astype(np.int64), axis=axes)
        np.copyto(out, np.asarray(result).reshape(dst.shape), casting="unsafe")

    return run


_REDUCE_PLANS = Plans(_plan_reduce)
