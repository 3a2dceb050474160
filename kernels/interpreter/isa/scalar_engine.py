"""The Scalar engine: activation and its accumulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.activation_functions import activation_function, input_range
from kernels.interpreter.blocks import in_blocks
from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import reduce_cmd
from kernels.interpreter.isa.instruction import (
    check_compute_operand,
    check_equal_partitions,
    check_same_shape,
    instruction,
)
from kernels.interpreter.isa.reduction import reduce_ufunc
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.scratch import scratch
from kernels.interpreter.tensor import NkiTensor

__all__ = ["activation", "activation_reduce"]

Array = npt.NDArray[Any]


@instruction
def activation(
    dst: NkiTensor,
    op: Callable[..., Any],
    data: NkiTensor,
    bias: NkiTensor | None = None,
    scale: Any = 1.0,
    reduce_op: Callable[..., Any] | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> None:
    """dst = op(data * scale + bias), and a sum along the free axis in the accumulators.

    reduce_cmd says what the 128 fp32 accumulators do, which all activation calls share: `reset`
    sets them to 0, `reduce` adds this call's row sums, `reset_reduce` does both. With reduce_res
    the accumulators are written there.
    """
    _activate(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd, "activation")


@instruction
def activation_reduce(
    dst: NkiTensor,
    op: Callable[..., Any],
    data: NkiTensor,
    reduce_op: Callable[..., Any],
    reduce_res: NkiTensor,
    bias: NkiTensor | None = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> None:
    """activation with reduce_cmd=reset_reduce."""
    _activate(
        dst,
        op,
        data,
        bias,
        scale,
        reduce_op,
        reduce_res,
        reduce_cmd.reset_reduce,
        "activation_reduce",
    )


def _activate(
    dst: NkiTensor,
    op: Callable[..., Any],
    data: NkiTensor,
    bias: NkiTensor | None,
    scale: Any,
    reduce_op: Callable[..., Any] | None,
    reduce_res: NkiTensor | None,
    command: reduce_cmd,
    instruction_name: str,
) -> None:
    scale_is_tile = type(scale) is NkiTensor
    key = (
        instruction_name,
        dst.face,
        op,
        data.face,
        bias if bias is None else bias.face,
        scale.face if scale_is_tile else type(scale),
        reduce_op,
        reduce_res if reduce_res is None else reduce_res.face,
        command,
    )
    plan = _ACTIVATION_PLANS[key]
    source = data.read("data")
    bias_values = None if bias is None else bias.read("bias")
    scale_values = scale.read("scale") if scale_is_tile else scale
    program = LOCAL.program
    assert program is not None
    result = plan.run(dst.array, source, bias_values, scale_values)
    dst.wrote()
    accumulators = program.scalar_accumulators
    if command is not reduce_cmd.idle:
        accumulators.update(dst.face, command.name, np.add, result, np.float32(0))
    if reduce_res is not None:
        rows = accumulators.values(dst.face)
        store_float32(reduce_res.array, rows.reshape(reduce_res.shape))
        reduce_res.wrote()
    program.count(plan)


def _plan_activation(
    instruction_name: str,
    dst: Face,
    op: Any,
    data: Face,
    bias: Face | None,
    scale: Any,
    reduce_op: Any,
    reduce_res: Face | None,
    command: reduce_cmd,
) -> Plan:
    function_name, function = activation_function(op)
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_same_shape(("dst", dst), ("data", data))
    _check_columns(data, bias, scale, reduce_res)
    if not isinstance(command, reduce_cmd) or command is reduce_cmd.load_reduce:
        refuse("reduce_cmd", command, "idle, reset, reduce or reset_reduce")
    reduces = command in (reduce_cmd.reduce, reduce_cmd.reset_reduce)
    if reduce_op is not None and reduce_ufunc(reduce_op) is not np.add:
        refuse(
            "reduce_op",
            getattr(reduce_op, "__name__", reduce_op),
            "nl.add",
            "the Scalar engine's accumulators only add",
        )
    if reduces and reduce_op is None:
        refuse("reduce_op", None, f"nl.add with {command}")
    rank = len(dst.shape)
    limits = input_range(function_name)
    columns = (-1, *([1] * (rank - 1)))
    direct = dst.dtype.name == "float32"

    def run(out: Array, source: Array, bias_values: Any, scale_values: Any) -> Array | None:
        values = as_float32(source, "a").reshape(out.shape)
        result = out if direct and bias is None else scratch("result", out.shape)
        values = _affine(values, bias_values, scale_values, columns, result)
        if limits is not None:
            _check_range(values, limits, function_name)
        function(values, result)
        if result is not out:
            store_float32(out, result)
        if not reduces:
            return None
        return np.add.reduce(result.reshape(len(out), -1), axis=1, keepdims=True)

    sources = tuple(face for face in (data, bias, scale) if isinstance(face, Face))
    return Plan(instruction_name, "scalar", in_blocks(run, dst), dst, sources)


def _affine(values: Array, bias: Any, scale: Any, columns: tuple[int, ...], result: Array) -> Array:
    """values * scale + bias in fp32, written to `result` unless nothing is to be done."""
    if isinstance(scale, np.ndarray):
        values = np.multiply(values, scale.reshape(columns), out=result)
    elif scale != 1.0:
        values = np.multiply(values, np.float32(scale), out=result)
    if bias is not None:
        values = np.add(values, as_float32(bias, "bias").reshape(columns), out=result)
    return values


def _check_columns(data: Face, bias: Face | None, scale: Any, reduce_res: Face | None) -> None:
    for operand, face in (("bias", bias), ("scale", scale), ("reduce_res", reduce_res)):
        if not isinstance(face, Face):
            continue
        check_compute_operand(face, operand)
        check_equal_partitions(("data", data), (operand, face))
        if face.free_size != 1:
            refuse(operand, list(face.shape), f"shape [{data.partitions}, 1]")
    if isinstance(scale, Face):
        if scale.dtype.name != "float32":
            refuse("scale", scale.dtype, "float32", "tensor_copy it to float32")
    elif not issubclass(scale, int | float | np.number):
        refuse("scale", scale.__name__, "a number or a (P, 1) float32 tile")
    if bias is not None and bias.dtype.name == "tfloat32":
        refuse("bias", bias.dtype, "any dtype but tfloat32")


def _check_range(values: Array, limits: tuple[float, float], name: str) -> None:
    low, high = np.float32(limits[0]), np.float32(limits[1])
    outside = (values < low) | (values > high)
    if outside.any():
        refuse(
            "data",
            f"{values[outside][0]!r}",
            f"nl.{name} takes {limits[0]}..{limits[1]}",
            "reduce the range first; the hardware does not",
        )


_ACTIVATION_PLANS = Plans(_plan_activation)
