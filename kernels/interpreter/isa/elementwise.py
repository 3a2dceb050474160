"""Elementwise instructions of the Vector and GpSimd engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.alu import AluOp, alu_op
from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import engine
from kernels.interpreter.isa.instruction import (
    PSUM,
    check_compute_operand,
    check_equal_partitions,
    check_free_size,
    check_integer,
    check_same_shape,
    chosen_engine,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.scratch import scratch
from kernels.interpreter.tensor import NkiTensor

__all__ = ["reciprocal", "scalar_tensor_tensor", "tensor_scalar", "tensor_tensor"]

Array = npt.NDArray[Any]
_VECTOR, _GPSIMD, _SCALAR = engine.vector, engine.gpsimd, engine.scalar


# -- tensor_tensor --------------------------------------------------------------------------


@instruction
def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Callable[..., Any],
    engine: engine = engine.unknown,
    name: str | None = None,
) -> None:
    """dst = data1 op data2, elementwise. Both inputs may not be in PSUM."""
    key = (dst.face, data1.face, data2.face, op, engine)
    plan = _TENSOR_TENSOR_PLANS[key]
    first, second = data1.read("data1"), data2.read("data2")
    plan.run(dst.array, first, second)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_tensor_tensor(
    dst: Face, first: Face, second: Face, op: Callable[..., Any], requested: engine
) -> Plan:
    alu = alu_op(op)
    for operand, face in (("dst", dst), ("data1", first), ("data2", second)):
        check_compute_operand(face, operand)
    check_same_shape(("dst", dst), ("data1", first), ("data2", second))
    if first.region is PSUM and second.region is PSUM:
        refuse("data2", "in psum", "data1 and data2 may not both be in PSUM", "tensor_copy one")
    if alu.is_unary and alu.name != "bypass":
        refuse("op", f"nl.{alu.name}", "a binary operation", "use tensor_scalar or activation")
    exact = _runs_exact(alu, first, second)
    name = _engine_of(alu, requested, _GPSIMD if exact else _VECTOR, (dst, first, second))
    shape = dst.shape
    if alu.is_bits:
        for operand, face in (("dst", dst), ("data1", first), ("data2", second)):
            check_integer(face, operand)
        run = _bits_runner(alu, shape)
    elif exact and name == "gpsimd":
        run = _exact_runner(alu, shape)
    else:
        run = _float_runner(alu, dst, first, second)
    return Plan("tensor_tensor", name, run, dst, (first, second))


def _runs_exact(alu: AluOp, first: Face, second: Face) -> bool:
    wide = ("int32", "uint32")
    on_sbuf = first.region is not PSUM and second.region is not PSUM
    return (
        alu.exact is not None and on_sbuf and first.dtype.name in wide and second.dtype.name in wide
    )


def _engine_of(alu: AluOp, requested: engine, default: engine, faces: tuple[Face, ...]) -> str:
    if "vector" not in alu.engines:
        default = _GPSIMD
    name = chosen_engine(requested, default, (_VECTOR, _GPSIMD))
    if name not in alu.engines:
        refuse("engine", name, f"nl.{alu.name} runs on {', '.join(alu.engines)}")
    if name == "gpsimd" and any(face.region is PSUM for face in faces):
        refuse(
            "engine",
            "gpsimd",
            "GpSimd cannot reach PSUM",
            "tensor_copy the operand to SBUF first",
        )
    return name


def _float_runner(alu: AluOp, dst: Face, first: Face, second: Face) -> Callable[..., None]:
    shape, compute = dst.shape, alu.compute
    names = {dst.dtype.name, first.dtype.name, second.dtype.name}
    if names == {"float32"} and dst.shape == first.shape == second.shape:

        def direct(out: Array, a: Array, b: Array) -> None:
            compute(a, b, out=out)

        return direct

    def through_float32(out: Array, a: Array, b: Array) -> None:
        left = as_float32(a, "a").reshape(shape)
        right = as_float32(b, "b").reshape(shape)
        result = scratch("result", shape)
        compute(left, right, out=result)
        store_float32(out, result)

    return through_float32


def _bits_runner(alu: AluOp, shape: tuple[int, ...]) -> Callable[..., None]:
    def run(out: Array, a: Array, b: Array) -> None:
        result = np.empty(shape, np.uint32)
        alu.compute(_bits(a).reshape(shape), _bits(b).reshape(shape), out=result)
        np.copyto(out, result, casting="unsafe")

    return run


def _bits(array: Array) -> Array:
    return array.astype(np.int64).astype(np.uint32)


def _exact_runner(alu: AluOp, shape: tuple[int, ...]) -> Callable[..., None]:
    assert alu.exact is not None
    exact = alu.exact

    def run(out: Array, a: Array, b: Array) -> None:
        wide = exact(a.astype(np.int64).reshape(shape), b.astype(np.int64).reshape(shape))
        if out.dtype.kind in "iu":
            # 32-bit registers wrap around; narrower destinations keep the low bits.
            np.copyto(out, wide, casting="unsafe")
        else:
            store_float32(out, wide.astype(np.float32))

    return run


# -- tensor_scalar --------------------------------------------------------------------------


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
        _check_scalar_operand(alu, operand, label, data)
    name = _scalar_engine(stages, requested, (dst, data))
    if first.is_bits:
        check_integer(dst, "dst")
        check_integer(data, "data")
        run = _scalar_bits_runner(first, second, dst.shape, reverse0, reverse1)
    else:
        run = _scalar_float_runner(first, second, dst, data, operand0, operand1, reverse0, reverse1)
    tiles = tuple(operand for _, operand, _ in stages if isinstance(operand, Face))
    return Plan("tensor_scalar", name, run, dst, (data, *tiles))


def _check_scalar_operand(alu: AluOp, operand: Any, label: str, data: Face) -> None:
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


def _column(operand: Any, rank: int) -> Any:
    """A constant as fp32, a (P, 1) tile with one axis for each of `rank` dimensions."""
    if isinstance(operand, np.ndarray):
        return operand.reshape(operand.shape[0], *([1] * (rank - 1)))
    return np.float32(operand) if operand is not None else None


def _stage(alu: AluOp, reverse: bool) -> Callable[..., None]:
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
    shape, rank = dst.shape, len(dst.shape)
    stage0 = _stage(first, reverse0)
    stage1 = _stage(second, reverse1) if second is not None else None
    same_shape = dst.shape == data.shape
    in_place = dst.dtype.name == "float32" and same_shape and not isinstance(operand1, Face)

    def run(out: Array, source: Array, value0: Any, value1: Any) -> None:
        values = as_float32(source, "a")
        if not same_shape:
            values = values.reshape(shape)
        result = out if in_place else scratch("result", shape)
        stage0(values, _column(value0, rank), out=result)
        if stage1 is not None:
            stage1(result, _column(value1, rank), out=result)
        if not in_place:
            store_float32(out, result)

    return run


def _scalar_bits_runner(
    first: AluOp,
    second: AluOp | None,
    shape: tuple[int, ...],
    reverse0: bool,
    reverse1: bool,
) -> Callable[..., None]:
    stage0 = _stage(first, reverse0)
    stage1 = _stage(second, reverse1) if second is not None else None

    def operand(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _bits(value).reshape(value.shape[0], *([1] * (len(shape) - 1)))
        return np.uint32(int(value) & 0xFFFFFFFF) if value is not None else None

    def run(out: Array, source: Array, value0: Any, value1: Any) -> None:
        result = np.empty(shape, np.uint32)
        stage0(_bits(source).reshape(shape), operand(value0), out=result)
        if stage1 is not None:
            stage1(result, operand(value1), out=result)
        np.copyto(out, result, casting="unsafe")

    return run


# -- scalar_tensor_tensor -------------------------------------------------------------------


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
    _check_scalar_operand(first, operand0, "operand0", data)
    for alu in (first, second):
        if "vector" not in alu.engines:
            refuse("op0", f"nl.{alu.name}", "an operation of the Vector engine")
    stage0, stage1 = _stage(first, reverse0), _stage(second, reverse1)
    shape, rank = dst.shape, len(dst.shape)
    direct = dst.dtype.name == "float32"

    def run(out: Array, source: Array, value0: Any, tile: Array) -> None:
        partial = scratch("result", shape)
        values = as_float32(source, "a").reshape(shape)
        other = as_float32(tile, "b").reshape(shape)
        stage0(values, _column(value0, rank), out=partial)
        if direct:
            stage1(partial, other, out=out)
        else:
            stage1(partial, other, out=partial)
            store_float32(out, partial)

    sources = (data, operand1) + ((operand0,) if isinstance(operand0, Face) else ())
    return Plan("scalar_tensor_tensor", "vector", run, dst, sources)


# -- reciprocal -----------------------------------------------------------------------------


@instruction
def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """dst = 1 / data on the Vector engine."""
    key = (dst.face, data.face)
    plan = _RECIPROCAL_PLANS[key]
    plan.run(dst.array, data.read("data"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_reciprocal(dst: Face, data: Face) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_equal_partitions(("dst", dst), ("data", data))
    check_free_size(("dst", dst), ("data", data))

    def run(out: Array, source: Array) -> None:
        values = as_float32(source, "a").reshape(dst.shape)
        result = scratch("result", dst.shape)
        np.reciprocal(values, out=result)
        store_float32(out, result)

    return Plan("reciprocal", "vector", run, dst, (data,))


_TENSOR_TENSOR_PLANS = Plans(_plan_tensor_tensor)
_TENSOR_SCALAR_PLANS = Plans(_plan_tensor_scalar)
_SCALAR_TENSOR_TENSOR_PLANS = Plans(_plan_scalar_tensor_tensor)
_RECIPROCAL_PLANS = Plans(_plan_reciprocal)
