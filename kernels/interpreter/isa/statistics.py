"""Mean and variance in two steps: bn_stats and bn_aggr."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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

__all__ = ["bn_aggr", "bn_stats"]

Array = npt.NDArray[Any]
_MAX_FREE = 512


@instruction
def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """dst[P, 6] = (count, mean, count * variance) of the even and of the odd elements; F <= 512."""
    plan = _STATS_PLANS[dst.face, data.face]
    plan.run(dst.array, data.read("data"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_stats(dst: Face, data: Face) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_equal_partitions(("data", data), ("dst", dst))
    if not 1 <= data.free_size <= _MAX_FREE:
        refuse(
            "data",
            f"{data.free_size} elements a partition",
            f"1..{_MAX_FREE} (nl.tile_size.bn_stats_fmax)",
            "bn_aggr joins several tiles",
        )
    if dst.free_size != 6:
        refuse("dst", list(dst.shape), f"[{data.partitions}, 6]")

    def run(out: Array, source: Array) -> None:
        values = as_float32(source, "a").reshape(data.partitions, -1)
        columns: list[Any] = []
        for half in (values[:, 0::2], values[:, 1::2]):
            count = half.shape[1]
            mean = half.mean(axis=1) if count else np.zeros(len(half), np.float32)
            spread = ((half - mean[:, None]) ** 2).sum(axis=1)
            columns += [np.full(len(half), count, np.float32), mean, spread]
        store_float32(out, np.stack(columns, axis=1).astype(np.float32).reshape(dst.shape))

    return Plan("bn_stats", "vector", run, dst, (data,))


@instruction
def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """dst[P, 2] = mean and variance of what triples (count, mean, count * variance) describe."""
    plan = _AGGREGATE_PLANS[dst.face, data.face]
    plan.run(dst.array, data.read("data"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_aggregate(dst: Face, data: Face) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_equal_partitions(("data", data), ("dst", dst))
    if data.free_size == 0 or data.free_size % 3:
        refuse("data", list(data.shape), "triples (count, mean, count * variance)")
    if dst.free_size != 2:
        refuse("dst", list(dst.shape), f"[{data.partitions}, 2]")

    def run(out: Array, source: Array) -> None:
        triples = as_float32(source, "a").reshape(data.partitions, -1, 3)
        count, mean, spread = triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]
        total = count.sum(axis=1)
        joint = (count * mean).sum(axis=1) / total
        within = (spread + count * (mean - joint[:, None]) ** 2).sum(axis=1) / total
        store_float32(out, np.stack([joint, within], axis=1).reshape(dst.shape))

    return Plan("bn_aggr", "vector", run, dst, (data,))


_STATS_PLANS = Plans(_plan_stats)
_AGGREGATE_PLANS = Plans(_plan_aggregate)
