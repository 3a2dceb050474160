"""Instructions that make values from positions: iota and affine_select."""

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
    SBUF,
    check_compute_operand,
    check_same_shape,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["affine_select", "equal", "iota"]

Array = npt.NDArray[Any]


def equal(x: Any, y: Any, dtype: Any = None) -> Any:
    """The default comparison of affine_select; kernels use nl.equal."""
    refuse("op", "called", "an operation name, not a function")


def _pattern_key(pattern: Any) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((int(step), int(count)) for step, count in pattern)
    except (TypeError, ValueError):
        refuse("pattern", repr(pattern), "[[step, count], …] of ints")


def _affine_values(
    pattern: tuple[tuple[int, int], ...], partitions: int, offset: int, multiplier: int
) -> Array:
    """offset + partition * multiplier + sum of step * index, int32, [P, prod(counts)]."""
    values = np.zeros((1,), np.int64)
    for step, count in pattern:
        values = (values[:, None] + step * np.arange(count, dtype=np.int64)).reshape(-1)
    rows = offset + multiplier * np.arange(partitions, dtype=np.int64)
    total: Array = (rows[:, None] + values[None, :]).astype(np.int32)
    return total


def _check_pattern(pattern: tuple[tuple[int, int], ...], dst: Face) -> None:
    size = 1
    for _, count in pattern:
        size *= count
    if not 1 <= len(pattern) <= 4:
        refuse("pattern", [list(pair) for pair in pattern], "1 to 4 dimensions")
    if size != dst.free_size:
        refuse(
            "pattern", f"{size} elements", f"dst {list(dst.shape)} has {dst.free_size} a partition"
        )


@instruction
def iota(
    dst: NkiTensor,
    pattern: Any,
    offset: int = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> None:
    """dst[p, i…] = offset + p * channel_multiplier + sum(step * i), int32, then cast."""
    steps = _pattern_key(pattern)
    key = (dst.face, steps, offset, channel_multiplier)
    plan = _IOTA_PLANS[key]
    plan.run(dst.array)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_iota(dst: Face, steps: tuple[tuple[int, int], ...], offset: int, multiplier: int) -> Plan:
    check_compute_operand(dst, "dst", (SBUF,))
    _check_pattern(steps, dst)
    values = _affine_values(steps, dst.partitions, offset, multiplier).reshape(dst.shape)

    def run(out: Array) -> None:
        if out.dtype == np.int32:
            np.copyto(out, values)
        else:
            store_float32(out, values.astype(np.float32))

    return Plan("iota", "gpsimd", run, dst, ())


@instruction
def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Callable[..., Any] = equal,
    offset: int = 0,
    name: str | None = None,
) -> None:
    """dst = on_true_tile where cmp_op(affine value, 0), else on_false_value."""
    steps = _pattern_key(pattern)
    key = (
        dst.face,
        steps,
        channel_multiplier,
        on_true_tile.face,
        cmp_op,
        offset,
    )
    plan = _SELECT_PLANS[key]
    plan.run(dst.array, on_true_tile.read("on_true_tile"), on_false_value)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_select(
    dst: Face,
    steps: tuple[tuple[int, int], ...],
    multiplier: int,
    tile: Face,
    cmp_op: Any,
    offset: int,
) -> Plan:
    check_compute_operand(dst, "dst", (SBUF,))
    check_compute_operand(tile, "on_true_tile", (SBUF,))
    check_same_shape(("dst", dst), ("on_true_tile", tile))
    _check_pattern(steps, dst)
    compare = alu_op(cmp_op, "cmp_op")
    if compare.kind != "compare":
        refuse("cmp_op", f"nl.{compare.name}", "a comparison")
    affine = _affine_values(steps, dst.partitions, offset, multiplier).reshape(dst.shape)
    flags = np.empty(dst.shape, np.float32)
    compare.compute(affine, 0, out=flags)
    keep = flags != 0

    def run(out: Array, source: Array, otherwise: Any) -> None:
        values = as_float32(source, "a").reshape(dst.shape)
        store_float32(out, np.where(keep, values, np.float32(otherwise)))

    return Plan("affine_select", "gpsimd", run, dst, (tile,))


_IOTA_PLANS = Plans(_plan_iota)
_SELECT_PLANS = Plans(_plan_select)
