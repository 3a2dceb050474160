"""Elementwise instructions with one operand a partition: tensor_scalar, scalar_tensor_tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.alu import AluOp, alu_op
from kernels.interpreter.blocks import in_blocks
from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.elementwise import bit_pattern
from kernels.interpreter.isa.enums import engine
from kernels.interpreter.isa.instruction import (
    PSUM,
    check_compute_operand,
    check_equal_partitions,
    check_integer,
    check_same_shape,
    chosen_engine,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.scratch import scratch
from kernels.interpreter.tensor import NkiTensor

__all__ = ["scalar_tensor_tensor", "tensor_scalar"]

Array = npt.NDArray[Any]
_VECTOR, _GPSIMD, _SCALAR = engine.vector, engine.gpsimd, engine.scalar


@instruction
def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Callable[..., Any],
    operand0: Any,
    reverse0: bool = False,
    op1: Callable[..., Any] | None = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1; operands are constants or (P, 1) fp32 tiles."""
    tile0 = type(operand0) is NkiTensor
    tile1 = type(operand1) is NkiTensor
    key = (
        dst.face,
        data.face,
        op0,
        op1,
        operand0.face if tile0 else type(operand0),
        operand1.face if tile1 else type(operand1),
        reverse0,
        reverse1,
        engine,
    )
    plan = _TENSOR_SCALAR_PLANS[key]
    source = data.read("data")
    first = operand0.read("operand0") if tile0 else operand0
    second = operand1.read("operand1") if tile1 else operand1
    plan.run(dst.array, source, first, second)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_tensor_scalar(
    dst: Face,
    data: Face,
    op0: Any,
    op1: Any,
    operand0: Any,
    operand1: Any,
    reverse0: bool,
    reverse1: bool,
    requested: engine,
) -> Plan:
    first = alu_op(op0, "op0")
    second = alu_op(op1, "op1") if op1 is not None else None
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_same_shape(("dst", dst), ("data", data))
    stages = [(first, operand0, "operand0")]
    if second is not None:
        stages.append((second, operand1, "operand1"))
    bits = [alu.is_bits for alu, _, _ in stages]
    if any(bits) and not all(bits):
        refuse(
            "op1",
            f"nl.{first.name} with nl.{stages[-1][0].name}",
            "bitwise and arithmetic operations do not mix in one instruction",
            "use two instructions",
        )
    for alu, operand, label in stages:
        check_scalar_operand(alu, operand, label, data)
    name = _scalar_engine(stages, requested, (dst, data))
    if first.is_bits:
        check_integer(dst, "dst")
        check_integer(data, "data")
        run = _scalar_bits_runner(first, second, dst.shape, reverse0, reverse1)
    else:
        run = _scalar_float_runner(first, second, dst, data, operand0, operand1, reverse0, reverse1)
    tiles = tuple(operand for _, operand, _ in stages if isinstance(operand, Face))
    return Plan("tensor_scalar", name, run, dst, (data, *tiles))


def check_scalar_operand(alu: AluOp, operand: Any, label: str, data: Face) -> None:
    if isinstance(operand, Face):
        check_compute_operand(operand, label)
        check_equal_partitions(("data", data), (label, operand))
        if operand.free_size != 1:
            refuse(
                label,
                list(operand.shape),
                "a constant or a (P, 1) tile",
                "use tensor_tensor for a whole tile",
            )
        if alu.is_bits:
            check_integer(operand, label)
        elif operand.dtype.name != "float32":
            refuse(
                label,
                operand.dtype,
                "operand tiles of arithmetic are float32",
                "tensor_copy it to float32",
            )
        return
    if alu.is_unary:
        return
    allowed = (int, np.integer) if alu.is_bits else (int, float, np.integer, np.floating)
    if not issubclass(operand, allowed):
        wanted = "an int" if alu.is_bits else "a number"
        refuse(label, operand.__name__, f"{wanted} or a (P, 1) tile for nl.{alu.name}")


def _scalar_engine(
    stages: list[tuple[AluOp, Any, str]], requested: engine, faces: tuple[Face, ...]
) -> str:
    default = _VECTOR
    if any("vector" not in alu.engines for alu, _, _ in stages):
        default = _GPSIMD
    name = chosen_engine(requested, default, (_VECTOR, _GPSIMD, _SCALAR))
    for alu, _, _ in stages:
        if name not in alu.engines:
            refuse("engine", name, f"nl.{alu.name} runs on {', '.join(alu.engines)}")
    if name == "gpsimd" and any(face.region is PSUM for face in faces):
        refuse("engine", "gpsimd", "GpSimd cannot reach PSUM", "tensor_copy to SBUF first")
    return name


def column(operand: Any, rank: int) -> Any:
    """A constant as fp32, a (P, 1) tile with one axis for each of `rank` dimensions."""
    if isinstance(operand, np.ndarray):
        return operand.reshape(operand.shape[0], *([1] * (rank - 1)))
    return np.float32(operand) if operand is not None else None


def stage_of(alu: AluOp, reverse: bool) -> Callable[..., None]:
    compute = alu.compute
    if not reverse:
        return compute

    def reversed_compute(a: Array, b: Any, out: Array) -> None:
        compute(b, a, out=out)

    return reversed_compute


def _scalar_float_runner(
    first: AluOp,
    second: AluOp | None,
    dst: Face,
    data: Face,
    operand0: Any,
    operand1: Any,
    reverse0: bool,
    reverse1: bool,
) -> Callable[..., None]:
    rank = len(dst.shape)
    stage0 = stage_of(first, reverse0)
    stage1 = stage_of(second, reverse1) if second is not None else None
    same_shape = dst.shape == data.shape
    in_place = dst.dtype.name == "float32" and same_shape and not isinstance(operand1, Face)

    def run(out: Array, source: Array, value0: Any, value1: Any) -> None:
        values = as_float32(source, "a")
        if not same_shape:
            values = values.reshape(out.shape)
        result = out if in_place else scratch("result", out.shape)
        stage0(values, column(value0, rank), out=result)
        if stage1 is not None:
            stage1(result, column(value1, rank), out=result)
        if not in_place:
            store_float32(out, result)

    return in_blocks(run, dst)


def _scalar_bits_runner(
    first: AluOp,
    second: AluOp | None,
    shape: tuple[int, ...],
    reverse0: bool,
    reverse1: bool,
) -> Callable[..., None]:
    stage0 = stage_of(first, reverse0)
    stage1 = stage_of(second, reverse1) if second is not None else None

    def operand(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return bit_pattern(value).reshape(value.shape[0], *([1] * (len(shape) - 1)))
        return np.uint32(int(value) & 0xFFFFFFFF) if value is not None else None

    def run(out: Array, source: Array, value0: Any, value1: Any) -> None:
        result = np.empty(shape, np.uint32)
        stage0(bit_pattern(source).reshape(shape), operand(value0), out=result)
        if stage1 is not None:
            stage1(result, operand(value1), out=result)
        np.copyto(out, result, casting="unsafe")

    return run


@instruction
def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Callable[..., Any],
    operand0: Any,
    op1: Callable[..., Any],
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1; operand0 a constant or (P, 1), operand1 a tile."""
    tile0 = type(operand0) is NkiTensor
    if type(operand1) is not NkiTensor:
        refuse("operand1", repr(operand1), "a tile", "use tensor_scalar for two scalars")
    key = (
        dst.face,
        data.face,
        op0,
        op1,
        operand0.face if tile0 else type(operand0),
        operand1.face,
        reverse0,
        reverse1,
    )
    plan = _SCALAR_TENSOR_TENSOR_PLANS[key]
    source, tile = data.read("data"), operand1.read("operand1")
    plan.run(dst.array, source, operand0.read("operand0") if tile0 else operand0, tile)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_scalar_tensor_tensor(
    dst: Face,
    data: Face,
    op0: Any,
    op1: Any,
    operand0: Any,
    operand1: Face,
    reverse0: bool,
    reverse1: bool,
) -> Plan:
    first, second = alu_op(op0, "op0"), alu_op(op1, "op1")
    for operand, face in (("dst", dst), ("data", data), ("operand1", operand1)):
        check_compute_operand(face, operand)
    check_same_shape(("dst", dst), ("data", data), ("operand1", operand1))
    if data.region is PSUM and operand1.region is PSUM:
        refuse(
            "operand1",
            "in psum",
            "data and operand1 may not both be in PSUM",
            "tensor_copy one of them to SBUF",
        )
    if first.is_bits or second.is_bits:
        refuse(
            "op0",
            f"nl.{first.name}, nl.{second.name}",
            "arithmetic operations",
            "use tensor_scalar and tensor_tensor for bits",
        )
    check_scalar_operand(first, operand0, "operand0", data)
    for alu in (first, second):
        if "vector" not in alu.engines:
            refuse("op0", f"nl.{alu.name}", "an operation of the Vector engine")
    stage0, stage1 = stage_of(first, reverse0), stage_of(second, reverse1)
    rank = len(dst.shape)
    direct = dst.dtype.name == "float32"

    def run(out: Array, source: Array, value0: Any, tile: Array) -> None:
        partial = scratch("result", out.shape)
        values = as_float32(source, "a").reshape(out.shape)
        other = as_float32(tile, "b").reshape(out.shape)
        stage0(values, column(value0, rank), out=partial)
        if direct:
            stage1(partial, other, out=out)
        else:
            stage1(partial, other, out=partial)
            store_float32(out, partial)

    sources = (data, operand1) + ((operand0,) if isinstance(operand0, Face) else ())
    return Plan("scalar_tensor_tensor", "vector", in_blocks(run, dst), dst, sources)


_TENSOR_SCALAR_PLANS = Plans(_plan_tensor_scalar)
_SCALAR_TENSOR_TENSOR_PLANS = Plans(_plan_scalar_tensor_tensor)
