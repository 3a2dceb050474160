"""Selecting between two values by position ranges or by a predicate, with a running reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.accumulators import IDENTITY
from kernels.interpreter.alu import alu_op
from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import reduce_cmd
from kernels.interpreter.isa.instruction import (
    check_column,
    check_compute_operand,
    check_same_shape,
    instruction,
)
from kernels.interpreter.isa.reduction import reduce_ufunc
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["FP32_MIN", "maximum", "range_select", "select_reduce"]

Array = npt.NDArray[Any]
FP32_MIN = float(np.finfo(np.float32).min)


def maximum(x: Any, y: Any, dtype: Any = None) -> Any:
    """The default reduction of the selecting instructions; kernels use nl.maximum."""
    refuse("op", "called", "an operation name, not a function")


@instruction
def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Callable[..., Any],
    comp_op1: Callable[..., Any],
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Callable[..., Any] = maximum,
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> None:
    """dst_i = on_true_i where (range_start + i) meets both bounds, else FP32_MIN; row maximum.

    bound0 and bound1 are (P, 1) fp32.
    """
    if np.float32(on_false_value) != np.float32(FP32_MIN):
        refuse("on_false_value", on_false_value, f"{FP32_MIN}, the smallest float32")
    key = (
        dst.face,
        on_true_tile.face,
        comp_op0,
        comp_op1,
        bound0.face,
        bound1.face,
        None if reduce_res is None else reduce_res.face,
        reduce_op,
        reduce_cmd,
    )
    plan = _RANGE_PLANS[key]
    partial = plan.run(
        dst.array,
        on_true_tile.read("on_true_tile"),
        bound0.read("bound0"),
        bound1.read("bound1"),
        range_start,
    )
    dst.wrote()
    _reduce(plan, dst, partial, reduce_cmd, reduce_res)


def _plan_range(
    dst: Face,
    tile: Face,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Face,
    bound1: Face,
    reduce_res: Face | None,
    reduce_op: Any,
    command: Any,
) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(tile, "on_true_tile")
    check_same_shape(("dst", dst), ("on_true_tile", tile))
    for operand, face in (("bound0", bound0), ("bound1", bound1)):
        check_column(face, operand, tile)
        if face.dtype.name != "float32":
            refuse(operand, face.dtype, "float32")
    _check_reduction(reduce_op, reduce_res, command, tile)
    compares = []
    for operand, op in (("comp_op0", comp_op0), ("comp_op1", comp_op1)):
        alu = alu_op(op, operand)
        if alu.kind != "compare":
            refuse(operand, f"nl.{alu.name}", "a comparison")
        compares.append(alu.compute)

    def run(out: Array, source: Array, low: Array, high: Array, start: int) -> Array:
        positions = np.arange(start, start + tile.free_size, dtype=np.float32)[None, :]
        keep = np.ones((tile.partitions, tile.free_size), np.float32)
        flags = np.empty_like(keep)
        for compare, bound in zip(compares, (low, high), strict=True):
            compare(positions, bound.reshape(-1, 1), out=flags)
            keep *= flags
        values = as_float32(source, "a").reshape(keep.shape)
        result = np.where(keep != 0, values, np.float32(FP32_MIN))
        store_float32(out, result.reshape(dst.shape))
        partial: Array = result.max(axis=1, keepdims=True)
        return partial

    return Plan("range_select", "vector", run, dst, (tile, bound0, bound1))


@instruction
def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_op: Callable[..., Any] = maximum,
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """dst = on_true where predicate is non-zero, else on_false (a number or (P, 1)).

    The row maximum of dst goes to the accumulators by reduce_cmd.
    """
    is_tile = type(on_false) is NkiTensor
    key = (
        dst.face,
        predicate.face,
        on_true.face,
        on_false.face if is_tile else type(on_false),
        None if reduce_res is None else reduce_res.face,
        reduce_cmd,
        reduce_op,
        reverse_pred,
    )
    plan = _SELECT_REDUCE_PLANS[key]
    otherwise = on_false.read("on_false") if is_tile else on_false
    partial = plan.run(dst.array, predicate.read("predicate"), on_true.read("on_true"), otherwise)
    dst.wrote()
    _reduce(plan, dst, partial, reduce_cmd, reduce_res)


def _plan_select_reduce(
    dst: Face,
    predicate: Face,
    on_true: Face,
    on_false: Any,
    reduce_res: Face | None,
    command: Any,
    reduce_op: Any,
    reverse: bool,
) -> Plan:
    for operand, face in (("dst", dst), ("predicate", predicate), ("on_true", on_true)):
        check_compute_operand(face, operand)
    check_same_shape(("dst", dst), ("predicate", predicate), ("on_true", on_true))
    if isinstance(on_false, Face):
        check_column(on_false, "on_false", on_true)
    elif not issubclass(on_false, int | float | np.number):
        refuse("on_false", on_false.__name__, "a number or a (P, 1) tile")
    _check_reduction(reduce_op, reduce_res, command, on_true)

    def run(out: Array, mask: Array, source: Array, otherwise: Any) -> Array:
        chosen = as_float32(mask, "b").reshape(on_true.partitions, -1) != 0
        if reverse:
            chosen = ~chosen
        values = as_float32(source, "a").reshape(chosen.shape)
        if isinstance(otherwise, np.ndarray):
            otherwise = as_float32(otherwise, "c").reshape(-1, 1)
        else:
            otherwise = np.float32(otherwise)
        result = np.where(chosen, values, otherwise)
        store_float32(out, result.reshape(dst.shape))
        partial: Array = result.max(axis=1, keepdims=True)
        return partial

    return Plan("select_reduce", "vector", run, dst, (predicate, on_true))


def _check_reduction(op: Any, reduce_res: Face | None, command: Any, data: Face) -> None:
    if reduce_ufunc(op) is not np.maximum:
        refuse("reduce_op", getattr(op, "__name__", op), "nl.maximum")
    if not isinstance(command, reduce_cmd) or command is reduce_cmd.load_reduce:
        refuse("reduce_cmd", command, "idle, reset, reduce or reset_reduce")
    if reduce_res is not None:
        check_column(reduce_res, "reduce_res", data)


def _reduce(
    plan: Plan, dst: NkiTensor, partial: Array, command: reduce_cmd, reduce_res: NkiTensor | None
) -> None:
    program = LOCAL.program
    assert program is not None
    accumulators = program.vector_accumulators
    accumulators.update(dst.face, command.name, np.maximum, partial, IDENTITY[np.maximum])
    if reduce_res is not None:
        store_float32(reduce_res.array, accumulators.values(dst.face).reshape(reduce_res.shape))
        reduce_res.wrote()
    program.count(plan)


_RANGE_PLANS = Plans(_plan_range)
_SELECT_REDUCE_PLANS = Plans(_plan_select_reduce)
