"""What an op and a collective should cost: launch floor plus the longer of moving and computing.

Bytes and operations come from shapes alone, so an estimate needs no kernel and no device. The
constants are those of a calibration, or planning figures that say so (nki.md §6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.core.op_call import Argument, OpCall
from harness.run.microbench import UNCALIBRATED, Calibration

__all__ = ["PLANNING", "CallCost", "Machine", "call_cost", "machine_of"]

_DTYPE_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "uint8": 1,
    "int8": 1,
    "bool": 1,
}
# Codes and scales are bytes in every layout.
_QUANTISED_BYTES = 1
_DMA_ROW_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Machine:
    """Constants of one logical core and of its collectives.

    Attributes:
        label: how an estimate that uses them is to be called.
        collectives: ranks -> (floor ns, ns per byte of a rank's part).
    """

    label: str
    launch_ns: float
    ns_per_byte: float
    ns_per_flop: float
    collective_floor_ns: float
    collective_ns_per_byte: float
    collectives: Mapping[int, tuple[float, float]]

    def estimate_ns(self, cost: CallCost) -> float:
        """Of one call."""
        moving, computing = cost.num_bytes * self.ns_per_byte, cost.flops * self.ns_per_flop
        return self.launch_ns + max(moving, computing)

    def collective_ns(self, num_bytes: float, ranks: int) -> float:
        """Of one collective in which each rank brings so many bytes."""
        floor, slope = self.collectives.get(
            ranks, (self.collective_floor_ns, self.collective_ns_per_byte)
        )
        return floor + num_bytes * slope


PLANNING = Machine(
    label=f"{UNCALIBRATED} (planning figures of Trainium2)",
    launch_ns=2_000.0,
    ns_per_byte=1 / 716.0,
    ns_per_flop=1 / 79_000.0,
    collective_floor_ns=17_500.0,
    collective_ns_per_byte=1 / 100.0,
    collectives={},
)
"""716 GB/s and 79 TFLOP/s a logical core, 2 µs a kernel, 17.5 µs + bytes / 100 GB/s."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """What one call must move between HBM and core, and compute."""

    num_bytes: float
    flops: float


def machine_of(calibration: Calibration | None) -> Machine:
    """Measured constants where there are any; arithmetic stays the documented rate."""
    if calibration is None:
        return PLANNING
    launch = calibration.estimate_ns("launch", 0)
    rates = [
        line.ns_per_byte
        for line in calibration.lines
        if line.kind == "dma_rows" and line.detail.get("row") == _DMA_ROW_BYTES
    ]
    collectives = {
        line.ranks: (line.floor_ns, line.ns_per_byte)
        for line in calibration.lines
        if line.kind == "all_gather"
    }
    return Machine(
        label=calibration.label(),
        launch_ns=PLANNING.launch_ns if launch is None else launch,
        ns_per_byte=rates[0] if rates else PLANNING.ns_per_byte,
        ns_per_flop=PLANNING.ns_per_flop,
        collective_floor_ns=PLANNING.collective_floor_ns,
        collective_ns_per_byte=PLANNING.collective_ns_per_byte,
        collectives=collectives,
    )


def call_cost(call: OpCall, output_bytes: int) -> CallCost:
    """Arguments read, outputs written, and the multiplications and additions between them.

    Of experts only those that have a row are read, of a table or a cache only rows that are named.
    """
    read = [_argument_bytes(one) for one in call.arguments]
    if call.op in _SHARES:
        place, share = _SHARES[call.op](call)
        read[place] *= share
    return CallCost(sum(read) + output_bytes, _FLOPS.get(call.op, _elementwise)(call))


def _argument_bytes(argument: Argument) -> float:
    each = _QUANTISED_BYTES if argument.kind == "quantised" else _DTYPE_BYTES.get(argument.text, 0)
    return float(sum(math.prod(shape) for shape in argument.shapes) * each)


def _experts_with_rows(call: OpCall) -> tuple[int, float]:
    rows, experts = call.arguments[0].shape[0], call.arguments[1].shape[0]
    return 1, min(1.0, rows / experts)


def _table_rows(call: OpCall) -> tuple[int, float]:
    table, ids = call.arguments[:2]
    return 0, min(1.0, math.prod(ids.shape) / max(1, table.shape[0]))


def _cache_rows(call: OpCall) -> tuple[int, float]:
    kv, indices = call.arguments[1:3]
    return 1, min(1.0, math.prod(indices.shape) / max(1, kv.shape[0]))


_SHARES: Mapping[str, Callable[[OpCall], tuple[int, float]]] = {
    "linear_fp4_grouped": _experts_with_rows,
    "engram_lookup": _table_rows,
    "sparse_attention": _cache_rows,
}


def _elementwise(call: OpCall) -> float:
    return float(math.prod(call.arguments[0].shape))


def _linear(call: OpCall) -> float:
    x, weight = call.arguments[:2]
    return 2.0 * math.prod(x.shape) * weight.shape[-2]


def _projection(call: OpCall) -> float:
    o, weight = call.arguments[:2]
    groups = int(call.arguments[2].text)
    return 2.0 * math.prod(o.shape) * weight.shape[0] / groups


def _attention(call: OpCall) -> float:
    keys = call.arguments[2].shape[-1]
    return 4.0 * math.prod(call.arguments[0].shape) * keys


def _scores(call: OpCall) -> float:
    return 2.0 * math.prod(call.arguments[0].shape) * call.arguments[1].shape[0]


_FLOPS: Mapping[str, Callable[[OpCall], float]] = {
    "linear_fp8": _linear,
    "linear_bf16": _linear,
    "linear_fp4_grouped": _linear,
    "router": _linear,
    "hc_mixes": lambda call: 2.0 * math.prod(call.arguments[0].shape) * call.arguments[1].shape[0],
    "output_projection": _projection,
    "sparse_attention": _attention,
    "prefill_attention": _attention,
    "index_scores": _scores,
}
