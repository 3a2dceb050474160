"""How long a sweep will take, from what was measured before."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from harness.core.latency import measure_requests
from harness.core.results import PointStatus
from harness.core.sweep_spec import PlannedPoint, SweepSpec

__all__ = ["estimate_s"]

# Which measured point is most like a planned one: the earlier, the more it matters.
_LIKENESS = ("numerics", "ops", "cp", "ep", "concurrency", "request_rate")


def estimate_s(
    spec: SweepSpec, point: PlannedPoint, measured: Iterable[Mapping[str, Any]]
) -> float | None:
    """Seconds of a point's warm-ups and planned repeats; None where nothing like it is known.

    TTFT is taken as proportional to the input length, TPOT as it was; repeats that a goal of
    precision may add are not in it.

    Args:
        measured: payloads of earlier sweep records.
    """
    like = [one for one in measured if one["status"] == PointStatus.OK]
    if not like:
        return None
    nearest = max(like, key=lambda one: _likeness(point, one["config"]))
    samples = measure_requests(nearest["requests"])
    if not samples.ttft_ms:
        return None
    scale = point.input_len / float(nearest["config"]["input_len"])
    ttft_ms = statistics.median(samples.ttft_ms) * scale
    tpot_ms = statistics.median(samples.tpot_ms) if samples.tpot_ms else 0.0
    request_s = (ttft_ms + tpot_ms * (point.output_len - 1)) / 1e3
    num_requests = spec.num_repeats * point.num_prompts
    waves = -(-(num_requests + spec.num_warmups) // point.concurrency)
    by_rate_s = num_requests / point.request_rate if point.request_rate else 0.0
    return max(waves * request_s, by_rate_s)


def _likeness(point: PlannedPoint, config: Mapping[str, Any]) -> tuple[float, ...]:
    wanted = point.config
    equal = [float(config.get(name) == wanted.get(name)) for name in _LIKENESS]
    return (*equal, -abs(config["input_len"] - point.input_len))
