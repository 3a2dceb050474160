"""Elementwise instructions on two tiles or one: tensor_tensor and reciprocal."""

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

__all__ = ["bit_pattern", "reciprocal", "tensor_tensor"]

Array = npt.NDArray[Any]
_VECTOR, _GPSIMD, _SCALAR = engine.vector, engine.gpsimd, engine.scalar


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
    tail, compute = dst.shape[1:], alu.compute
    names = {dst.dtype.name, first.dtype.name, second.dtype.name}
    if names == {"float32"} and dst.shape == first.shape == second.shape:

        def direct(out: Array, a: Array, b: Array) -> None:
            compute(a, b, out=out)

        return direct

    def through_float32(out: Array, a: Array, b: Array) -> None:
        shape = (len(out), *tail)
        left = as_float32(a, "a").reshape(shape)
        right = as_float32(b, "b").reshape(shape)
        result = scratch("result", shape)
        compute(left, right, out=result)
        store_float32(out, result)

    return in_blocks(through_float32, dst)


def _bits_runner(alu: AluOp, shape: tuple[int, ...]) -> Callable[..., None]:
    def run(out: Array, a: Array, b: Array) -> None:
        result = np.empty(shape, np.uint32)
        alu.compute(bit_pattern(a).reshape(shape), bit_pattern(b).reshape(shape), out=result)
        np.copyto(out, result, casting="unsafe")

    return run


def bit_pattern(array: Array) -> Array:
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
        values = as_float32(source, "a").reshape(out.shape)
        result = scratch("result", out.shape)
        np.reciprocal(values, out=result)
        store_float32(out, result)

    return Plan("reciprocal", "vector", in_blocks(run, dst), dst, (data,))


_TENSOR_TENSOR_PLANS = Plans(_plan_tensor_tensor)
_RECIPROCAL_PLANS = Plans(_plan_reciprocal)
