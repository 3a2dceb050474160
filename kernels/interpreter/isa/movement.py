"""On-chip movement: tensor_copy, memset, tensor_copy_predicated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

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
    check_same_shape,
    chosen_engine,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["copy_runner", "memset", "tensor_copy", "tensor_copy_predicated"]

Array = npt.NDArray[Any]
_COMPUTE = (engine.vector, engine.scalar, engine.gpsimd)


def copy_runner(dst: Face, src: Face) -> Callable[[Array, Array], None]:
    """Copies bits where the dtypes are equal, else converts through fp32."""
    same_shape = dst.shape == src.shape
    if dst.dtype == src.dtype:

        def bits(out: Array, source: Array) -> None:
            np.copyto(out, source if same_shape else source.reshape(out.shape))

        return bits

    def convert(out: Array, source: Array) -> None:
        values = as_float32(source, "a")
        store_float32(out, values if same_shape else values.reshape(out.shape))

    return in_blocks(convert, dst) if dst.on_chip and src.on_chip else convert


@instruction
def tensor_copy(
    dst: NkiTensor,
    src: NkiTensor,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> None:
    """dst = src on chip; equal partitions and free sizes, shapes may differ."""
    key = (dst.face, src.face, engine)
    plan = _TENSOR_COPY_PLANS[key]
    plan.run(dst.array, src.read("src"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_tensor_copy(dst: Face, src: Face, requested: engine) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(src, "src")
    check_same_shape(("dst", dst), ("src", src))
    name = chosen_engine(requested, engine.vector, _COMPUTE)
    if name == "gpsimd" and PSUM in (dst.region, src.region):
        refuse("engine", "gpsimd", "GpSimd cannot reach PSUM", "use the Vector or Scalar engine")
    return Plan("tensor_copy", name, copy_runner(dst, src), dst, (src,))


@instruction
def memset(
    dst: NkiTensor, value: Any, engine: engine = engine.unknown, name: str | None = None
) -> None:
    """Every element of dst = value; an int for integer dtypes."""
    key = (dst.face, type(value), engine)
    plan = _MEMSET_PLANS[key]
    plan.run(dst.array, value)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_memset(dst: Face, value_type: type, requested: engine) -> Plan:
    check_compute_operand(dst, "dst")
    is_integer = issubclass(value_type, int | np.integer)
    if not is_integer and not issubclass(value_type, float | np.floating):
        refuse("value", value_type.__name__, "a number")
    name = chosen_engine(requested, engine.gpsimd, (engine.vector, engine.gpsimd))
    if requested is engine.unknown and dst.region is PSUM:
        name = "vector"
    if name == "gpsimd" and dst.region is PSUM:
        refuse("engine", "gpsimd", "GpSimd cannot reach PSUM", "use the Vector engine")
    kind = dst.dtype

    def fill_integer(out: Array, number: Any) -> None:
        info = np.iinfo(kind.carrier)
        if number != int(number) or not info.min <= number <= info.max:
            refuse("value", number, f"an int in {info.min}..{info.max} for {kind}")
        out.fill(int(number))

    def fill_float(out: Array, number: Any) -> None:
        out.fill(np.float32(number).astype(kind.carrier))

    run = fill_integer if kind.kind in ("int", "uint") else fill_float
    return Plan("memset", name, run, dst, ())


@instruction
def tensor_copy_predicated(
    dst: NkiTensor,
    src: Any,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """dst = src where predicate is non-zero; other elements of dst stay as they are."""
    is_tile = type(src) is NkiTensor
    key = (
        dst.face,
        src.face if is_tile else type(src),
        predicate.face,
        reverse_pred,
    )
    plan = _PREDICATED_PLANS[key]
    mask = predicate.read("predicate")
    source = src.read("src") if is_tile else src
    # Elements that stay are an input of the instruction.
    plan.run(dst.read("dst"), source, mask)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_predicated(dst: Face, src: Any, predicate: Face, reverse: bool) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(predicate, "predicate")
    check_same_shape(("dst", dst), ("predicate", predicate))
    if predicate.dtype.name not in ("uint8", "uint16", "uint32"):
        refuse("predicate", predicate.dtype, "uint8, uint16 or uint32")
    sources: tuple[Face, ...] = (predicate,)
    if isinstance(src, Face):
        check_compute_operand(src, "src")
        check_equal_partitions(("dst", dst), ("src", src))
        if src.free_size not in (1, dst.free_size):
            refuse("src", list(src.shape), f"{dst.free_size} elements a partition, or 1")
        if src.dtype != dst.dtype:
            refuse("src", src.dtype, f"the dtype of dst, {dst.dtype}")
        sources = (src, predicate)
    elif not issubclass(src, int | float | np.number):
        refuse("src", src.__name__, "a tile or a number")
    shape = dst.shape

    def run(out: Array, source: Any, mask: Array) -> None:
        chosen = (mask == 0 if reverse else mask != 0).reshape(shape)
        if not isinstance(source, np.ndarray):
            source = np.asarray(source, np.float32).astype(out.dtype)
        elif source.size == out.size:
            source = source.reshape(shape)
        else:
            source = source.reshape(source.shape[0], *([1] * (len(shape) - 1)))
        np.copyto(out, source, where=chosen)

    return Plan("tensor_copy_predicated", "vector", run, dst, sources)


_TENSOR_COPY_PLANS = Plans(_plan_tensor_copy)
_MEMSET_PLANS = Plans(_plan_memset)
_PREDICATED_PLANS = Plans(_plan_predicated)
