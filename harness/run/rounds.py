"""The order in which the points of one engine or server are measured, and when each has enough.

Warm-ups of every shape come first, then all repeats in one seeded random order, so that a drift
of the machine does not look like an effect of the shape. Points whose median is not known well
enough get further repeats, again in random order, until it is, or a limit ends it.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from harness.core.latency import failure_of, measure_requests
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import PlannedPoint, SweepSpec
from harness.run.clock import Clock, SystemClock
from harness.run.counters import differing_counter, pooled_counters, summed_totals
from harness.run.fallbacks import fallback_failure
from harness.run.other_work import OtherWork

__all__ = ["Progress", "Wave", "measure_rounds", "median_half_width"]

# Called with the point being measured, and repeats done of repeats planned.
Progress = Callable[[str, int, int], None]

# A first repeat that differs so much from the others says that the warm-up was too short.
_FIRST_WAVE_RATIO = 1.5
# Of all cores' time: more than this used by others shows in latencies.
_MAX_OTHER_WORK = 0.05


@dataclass(frozen=True, slots=True)
class Wave:
    """What one repeat of a point gave.

    Attributes:
        requests: their records.
        counters: what the engine counted, one mapping a request; empty where unknown.
        totals: what all of its steps came to (harness.run.counters.TOTALS); absent where nobody
            tells.
        is_alone: no two of its requests shared a step unless all did from first to last, so that
            their counts per step must be equal.
    """

    requests: Sequence[dict[str, Any]]
    counters: Sequence[Mapping[str, float]] = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    is_alone: bool = True


@dataclass(slots=True)
class _Measuring:
    plan: PlannedPoint
    others: OtherWork | None
    waves: list[Wave] = field(default_factory=list)
    warmups: list[dict[str, Any]] = field(default_factory=list)


def measure_rounds(
    spec: SweepSpec,
    points: Sequence[PlannedPoint],
    wave: Callable[[PlannedPoint, int], Wave],
    *,
    progress: Progress = lambda *_: None,
    clock: Clock | None = None,
    watch: Callable[[], OtherWork | None] = OtherWork,
) -> Iterator[tuple[PlannedPoint, SweepPoint | None]]:
    """Announce each repeat's point before it runs (None), and the point once it is complete.

    Args:
        wave: runs one repeat of a point; warm-ups have numbers below 0.
        watch: what sees work of others on this machine, one a point; None where what is measured
            is not of this process' making.
    """
    clock = clock or SystemClock()
    start_ns = clock.monotonic_ns()
    states = {point.key: _Measuring(point, watch()) for point in points}
    number, open_points = 0, list(points)
    planned = _first_order(spec, points)
    source = random.Random(spec.seed + 1)
    while planned:
        for point, repeat in planned:
            yield point, None
            progress(_label(point), number, number + len(planned))
            state = states[point.key]
            with _watched(state, is_measured=repeat >= 0):
                done = wave(point, repeat)
            _take(state, done, repeat, number)
            number += 1
            is_spent = spec.budget_s and clock.monotonic_ns() - start_ns > spec.budget_s * 1e9
            if repeat >= 0 and _has_enough(spec, state, is_spent=bool(is_spent)):
                open_points.remove(point)
                yield point, _finish(state)
        planned = [(point, len(states[point.key].waves)) for point in open_points]
        source.shuffle(planned)
    progress(f"{points[0].settings.label} measured", number, number)


def median_half_width(values: Sequence[float]) -> float | None:
    """Half width of the 95 % order-statistic interval of the median over the median.

    None where so few values give no such interval.
    """
    ascending = sorted(values)
    count = len(ascending)
    # The largest rank k with P(Binomial(n, 1/2) < k) <= 2.5 % on each side.
    rank, tail = 0, 0.0
    while rank < count:
        tail += math.comb(count, rank) / 2.0**count
        if tail > 0.025:
            break
        rank += 1
    middle = statistics.median(ascending) if ascending else 0.0
    if rank == 0 or middle <= 0:
        return None
    return (ascending[count - rank] - ascending[rank - 1]) / 2 / middle


def _first_order(spec: SweepSpec, points: Sequence[PlannedPoint]) -> list[tuple[PlannedPoint, int]]:
    warmups = [
        (point, -1 - number)
        for number in range(-(-spec.num_warmups // min(p.num_prompts for p in points)))
        for point in points
        if number < -(-spec.num_warmups // point.num_prompts)
    ]
    measured = [(point, repeat) for point in points for repeat in range(spec.num_repeats)]
    random.Random(spec.seed).shuffle(measured)
    return [*warmups, *measured]


@contextmanager
def _watched(state: _Measuring, *, is_measured: bool) -> Iterator[None]:
    if state.others is None or not is_measured:
        yield
        return
    state.others.start()
    yield
    state.others.stop()


def _take(state: _Measuring, wave: Wave, repeat: int, number: int) -> None:
    for record in wave.requests:
        record |= {"repeat": repeat, "order": number}
    if repeat < 0:
        state.warmups += wave.requests
    else:
        state.waves.append(wave)


def _has_enough(spec: SweepSpec, state: _Measuring, *, is_spent: bool) -> bool:
    count = len(state.waves)
    if count < spec.num_repeats:
        return False
    if not spec.interval_goal or count >= spec.max_repeats or is_spent:
        return True
    requests = [request for wave in state.waves for request in wave.requests]
    if any(failure_of(request) for request in requests):
        return True
    samples = measure_requests(requests)
    widths = [median_half_width(values) for values in (samples.ttft_ms, samples.tpot_ms) if values]
    return all(width is not None and width <= spec.interval_goal for width in widths)


def _finish(state: _Measuring) -> SweepPoint:
    """The point's verdict: OK only if every request is what was asked for."""
    requests = [request for wave in state.waves for request in wave.requests]
    counters = [one for wave in state.waves for one in wave.counters]
    totals = summed_totals([wave.totals for wave in state.waves])
    num_compiled = totals.pop("compile_events", None)
    point = SweepPoint(
        key=state.plan.key,
        config=state.plan.config,
        status=PointStatus.OK,
        requests=tuple(requests),
        warmups=tuple(state.warmups),
        counters={**pooled_counters(counters), **totals},
        compile_events=None if num_compiled is None else round(num_compiled),
        facts=_facts(state),
    )
    failures = [failure for request in requests if (failure := failure_of(request))]
    differing = differing_counter(counters)
    if differing and all(wave.is_alone for wave in state.waves):
        failures.append(f"counters per step differ between requests of one shape: {differing}")
    failures.extend(
        f"logits not finite at position {one['nonfinite_position']:.0f}: run `checkpoint verify`"
        for one in counters
        if "nonfinite_position" in one
    )
    if failures:
        message = f"{len(failures)} of {len(requests)} requests failed: {failures[0]}"
        return replace(point, status=PointStatus.FAILED, message=message)
    left_device = fallback_failure(point.counters, state.plan.settings.allowed_fallbacks)
    if left_device:
        return replace(point, status=PointStatus.FAILED, message=left_device)
    return point


def _facts(state: _Measuring) -> dict[str, float]:
    """What may have spoiled a measurement: other work on the machine, a cold first repeat."""
    medians = [_median_ttft_ms(wave.requests) for wave in state.waves]
    known = [value for value in medians if value is not None]
    facts = {
        "num_repeats": float(len(state.waves)),
        "load_average": os.getloadavg()[0],
        "num_cpus": float(os.cpu_count() or 1),
    }
    share = state.others.share if state.others is not None else None
    if share is not None:
        facts["other_work_share"] = share
        facts["is_contaminated"] = float(share > _MAX_OTHER_WORK)
    if len(known) > 1:
        ratio = known[0] / statistics.median(known[1:])
        facts["first_repeat_ratio"] = ratio
        facts["first_repeat_differs"] = float(not 1 / _FIRST_WAVE_RATIO < ratio < _FIRST_WAVE_RATIO)
    return facts


def _median_ttft_ms(requests: Sequence[Mapping[str, Any]]) -> float | None:
    values = measure_requests(requests).ttft_ms
    return statistics.median(values) if values else None


def _label(point: PlannedPoint) -> str:
    return f"{point.settings.label} in={point.input_len}"
