"""Instructions that carry a value along the free axis, or reduce while they write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.accumulators import IDENTITY
from kernels.interpreter.alu import AluOp, alu_op
from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import reduce_cmd
from kernels.interpreter.isa.instruction import (
    check_column,
    check_compute_operand,
    check_same_shape,
    check_scalar_or_column,
    instruction,
)
from kernels.interpreter.isa.reduction import reduce_ufunc
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["tensor_scalar_cumulative", "tensor_scalar_reduce", "tensor_tensor_scan"]

Array = npt.NDArray[Any]


def vector_op(op: Any, operand: str) -> AluOp:
    """An arithmetic, comparing or logical operation of the Vector engine."""
    alu = alu_op(op, operand)
    if alu.is_bits or "vector" not in alu.engines:
        refuse(operand, f"nl.{alu.name}", "an fp32 operation of the Vector engine")
    return alu


def _value(operand: Any, slot: str) -> Any:
    """A constant in fp32, or a (P, 1) tile's values as (P,)."""
    if isinstance(operand, NkiTensor):
        return as_float32(operand.read(slot), slot).reshape(-1)
    return np.float32(operand)


def _kind(operand: Any) -> Any:
    return operand.face if isinstance(operand, NkiTensor) else type(operand)


def _columns_first(array: Array, slot: str) -> Array:
    """[F, P] in fp32: one row a step of the scan."""
    values = as_float32(array, slot)
    return np.ascontiguousarray(values.reshape(values.shape[0], -1).T)


@instruction
def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Callable[..., Any],
    op1: Callable[..., Any],
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """r_i = (data0_i op0 r_{i-1}) op1 data1_i in fp32; r_{-1} = initial, a constant or (P, 1)."""
    key = (dst.face, data0.face, data1.face, _kind(initial), op0, op1, reverse0, reverse1)
    plan = _SCAN_PLANS[key]
    start = _value(initial, "initial")
    plan.run(dst.array, data0.read("data0"), data1.read("data1"), start)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_scan(
    dst: Face,
    data0: Face,
    data1: Face,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool,
    reverse1: bool,
) -> Plan:
    for operand, face in (("dst", dst), ("data0", data0), ("data1", data1)):
        check_compute_operand(face, operand)
    check_same_shape(("dst", dst), ("data0", data0), ("data1", data1))
    check_scalar_or_column(initial, "initial", data0)
    first, second = vector_op(op0, "op0").compute, vector_op(op1, "op1").compute

    def run(out: Array, left: Array, right: Array, start: Any) -> None:
        a, b = _columns_first(left, "a"), _columns_first(right, "b")
        result = np.empty_like(a)
        carry: Array = np.empty(a.shape[1], np.float32)
        carry[...] = start
        for step in range(a.shape[0]):
            row = result[step]
            first(*((carry, a[step]) if reverse0 else (a[step], carry)), out=row)
            second(*((b[step], row) if reverse1 else (row, b[step])), out=row)
            carry = row
        store_float32(out, np.ascontiguousarray(result.T).reshape(dst.shape))

    return Plan("tensor_tensor_scan", "vector", run, dst, (data0, data1))


@instruction
def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Callable[..., Any],
    op1: Callable[..., Any],
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    name: str | None = None,
) -> None:
    """r_i = (src_i op0 imm0) op1 r_{i-1}: prefix sums, products, maxima or minima.

    r_{-1} is op1's identity (reset_reduce), imm1 (load_reduce) or the Vector engine's accumulator
    (reduce), which afterwards holds the last value.
    """
    key = (dst.face, src.face, op0, op1, _kind(imm0), _kind(imm1), reduce_cmd)
    plan = _CUMULATIVE_PLANS[key]
    program = LOCAL.program
    assert program is not None
    accumulators = program.vector_accumulators
    start: Any
    if reduce_cmd.name == "reduce":
        start = accumulators.values(dst.face).reshape(-1)
    elif reduce_cmd.name == "load_reduce":
        start = _value(imm1, "imm1")
    else:
        start = IDENTITY[reduce_ufunc(op1, "op1")]
    last = plan.run(dst.array, src.read("src"), _value(imm0, "imm0"), start)
    accumulators.set(dst.face, last.reshape(-1, 1))
    dst.wrote()
    program.count(plan)


def _plan_cumulative(
    dst: Face, src: Face, op0: Any, op1: Any, imm0: Any, imm1: Any, command: reduce_cmd
) -> Plan:
    for operand, face in (("dst", dst), ("src", src)):
        check_compute_operand(face, operand)
        if face.dtype.name in ("int32", "uint32"):
            refuse(operand, face.dtype, "any dtype but 32-bit integers", "tensor_copy to float32")
    check_same_shape(("dst", dst), ("src", src))
    check_scalar_or_column(imm0, "imm0", src)
    name = getattr(command, "name", None)
    if name not in ("reset_reduce", "load_reduce", "reduce"):
        refuse("reduce_cmd", command, "reset_reduce, load_reduce or reduce")
    if (name == "load_reduce") != (imm1 is not type(None)):
        refuse("imm1", imm1, "the start value, with reduce_cmd.load_reduce only")
    if name == "load_reduce":
        check_scalar_or_column(imm1, "imm1", src)
    first, ufunc = vector_op(op0, "op0").compute, reduce_ufunc(op1, "op1")

    def run(out: Array, source: Array, immediate: Any, start: Any) -> Array:
        values = _columns_first(source, "a")
        result = np.empty_like(values)
        first(values, immediate, out=result)
        carry: Any = start
        for row in result:
            ufunc(row, carry, out=row)
            carry = row
        store_float32(out, np.ascontiguousarray(result.T).reshape(dst.shape))
        return np.array(carry)

    return Plan("tensor_scalar_cumulative", "vector", run, dst, (src,))


@instruction
def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Callable[..., Any],
    operand0: Any,
    reduce_op: Callable[..., Any],
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> None:
    """dst = data op0 operand0, and a reduction of dst along all free axes into reduce_res.

    The Vector engine's accumulators chain calls: reduce_cmd.reduce continues, load_reduce starts
    from reduce_init, reset_reduce from reduce_init or the operation's identity.
    """
    key = (
        dst.face,
        data.face,
        op0,
        _kind(operand0),
        reduce_op,
        None if reduce_res is None else reduce_res.face,
        reverse0,
        reduce_cmd,
        _kind(reduce_init),
    )
    plan = _SCALAR_REDUCE_PLANS[key]
    program = LOCAL.program
    assert program is not None
    partial = plan.run(dst.array, data.read("data"), _value(operand0, "operand0"))
    dst.wrote()
    ufunc = reduce_ufunc(reduce_op)
    initial: Any = IDENTITY[ufunc]
    if reduce_init is not None:
        initial = np.reshape(_value(reduce_init, "reduce_init"), (-1, 1))
    accumulators = program.vector_accumulators
    accumulators.update(dst.face, reduce_cmd.name, ufunc, partial, initial)
    if reduce_res is not None:
        sums = accumulators.values(dst.face).reshape(reduce_res.shape)
        store_float32(reduce_res.array, -sums if reduce_res_negate else sums)
        reduce_res.wrote()
    program.count(plan)


def _plan_scalar_reduce(
    dst: Face,
    data: Face,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Face | None,
    reverse0: bool,
    command: Any,
    reduce_init: Any,
) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_same_shape(("dst", dst), ("data", data))
    check_scalar_or_column(operand0, "operand0", data)
    if reduce_res is not None:
        check_column(reduce_res, "reduce_res", data)
    if reduce_init is not type(None):
        check_scalar_or_column(reduce_init, "reduce_init", data)
    elif getattr(command, "name", "") == "load_reduce":
        refuse("reduce_init", None, "the start value with reduce_cmd.load_reduce")
    if not isinstance(command, reduce_cmd):
        refuse("reduce_cmd", command, "a member of nisa.reduce_cmd")
    compute, ufunc = vector_op(op0, "op0").compute, reduce_ufunc(reduce_op)

    def run(out: Array, source: Array, operand: Any) -> Array:
        values = as_float32(source, "a").reshape(data.partitions, -1)
        column = operand.reshape(-1, 1) if isinstance(operand, np.ndarray) else operand
        result = np.empty(values.shape, np.float32)
        compute(*((column, values) if reverse0 else (values, column)), out=result)
        store_float32(out, result.reshape(dst.shape))
        partial: Array = ufunc.reduce(result, axis=1, keepdims=True)
        return partial

    return Plan("tensor_scalar_reduce", "vector", run, dst, (data,))


_SCAN_PLANS = Plans(_plan_scan)
_CUMULATIVE_PLANS = Plans(_plan_cumulative)
_SCALAR_REDUCE_PLANS = Plans(_plan_scalar_reduce)
