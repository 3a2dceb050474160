"""The TTFT/TPOT matrix: points of equal settings share one engine, their requests interleaved.

Interleaving in a seeded random order keeps a drift of the machine from looking like an effect of
the input length. A point is recorded when its last request is done; the record is on disk before
the next request starts. Finished points are not run again (resume by key).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from harness.core.engine_face import EngineFace, EngineFactory, Generation
from harness.core.errors import RankError, UsageError
from harness.core.latency import failure_of
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import PlannedPoint, SweepSpec
from harness.core.token_suite import Prompt

__all__ = ["Progress", "prompt_seed", "run_sweep"]

# Called with the point being measured, and requests done of requests planned.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class _Measuring:
    """A point at work."""

    plan: PlannedPoint
    requests: list[dict[str, Any]] = field(default_factory=list)
    warmups: list[dict[str, Any]] = field(default_factory=list)
    counters: list[Mapping[str, float]] = field(default_factory=list)
    compile_events: int = 0


def run_sweep(
    spec: SweepSpec,
    points: Sequence[PlannedPoint],
    factory: EngineFactory,
    *,
    finished: Iterable[str] = (),
    progress: Progress = lambda *_: None,
) -> Generator[SweepPoint, None, None]:
    """Measure points; each is yielded as soon as it is complete, for the caller to record.

    Args:
        points: of `spec.points(...)`.
        factory: opens an engine.
        finished: keys of points that need not run again.

    Raises:
        UsageError: every point is pruned, or the engine refuses a request.
    """
    behind = set(finished)
    if all(point.pruned for point in points):
        raise UsageError(f"sweep {spec.name!r}: no point can run; {points[0].pruned}")
    waiting = [point for point in points if point.key not in behind]
    for point in waiting:
        if point.pruned:
            yield SweepPoint(point.key, point.config, PointStatus.PRUNED, point.pruned)
    runnable = [point for point in waiting if not point.pruned]
    for _, group in groupby(runnable, key=lambda point: point.settings):
        yield from _run_settings(spec, list(group), factory, progress)


def prompt_seed(seed: int, input_len: int, repeat: int, slot: int) -> int:
    """Seed of one prompt: each repeat and each slot (a rank's own batch) draws another.

    Equal prompts would route every copy of a token to the same experts (port.md R20).
    """
    text = f"{seed}/{input_len}/{repeat}/{slot}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _run_settings(
    spec: SweepSpec, points: list[PlannedPoint], factory: EngineFactory, progress: Progress
) -> Iterator[SweepPoint]:
    """One engine for the points; after a crash a new one for those that are still unmeasured."""
    remaining = list(points)
    while remaining:
        at_work: PlannedPoint | None = None
        try:
            with factory(points[0].settings) as engine:
                for at_work, done in _measure(spec, list(remaining), engine, progress):
                    if done is not None:
                        remaining.remove(at_work)
                        yield done
        except RankError as error:
            # An engine that does not even open will not open for the next point either.
            lost = [at_work] if at_work in remaining else list(remaining)
            for point in lost:
                remaining.remove(point)
                yield SweepPoint(point.key, point.config, PointStatus.CRASHED, str(error))


def _measure(
    spec: SweepSpec, points: list[PlannedPoint], engine: EngineFace, progress: Progress
) -> Iterator[tuple[PlannedPoint, SweepPoint | None]]:
    """Announce each request's point before it runs (None), and the point once it is complete."""
    states = {point.key: _Measuring(point) for point in points}
    order = _request_order(spec, points)
    for number, (point, repeat) in enumerate(order):
        yield point, None
        state = states[point.key]
        progress(f"{point.settings.label} in={point.input_len}", number, len(order))
        generations = _request(spec, point, engine, repeat)
        records = [
            _request_record(spec, point, generation, repeat, number) for generation in generations
        ]
        if repeat < 0:
            state.warmups += records
            continue
        state.requests += records
        state.counters += [generation.counters for generation in generations]
        state.compile_events += int(engine.facts().get("num_compile_events", 0))
        if len(state.requests) == spec.num_repeats * spec.concurrency:
            yield point, _finish(state)
    progress(f"{points[0].settings.label} measured", len(order), len(order))


def _request_order(
    spec: SweepSpec, points: Sequence[PlannedPoint]
) -> list[tuple[PlannedPoint, int]]:
    """Warm-ups of every shape (repeat < 0), then all measured requests in one random order."""
    num_waves = -(-spec.num_warmups // spec.concurrency)
    warmups = [(point, -1 - wave) for wave in range(num_waves) for point in points]
    measured = [(point, repeat) for point in points for repeat in range(spec.num_repeats)]
    random.Random(spec.seed).shuffle(measured)
    return [*warmups, *measured]


def _request(
    spec: SweepSpec, point: PlannedPoint, engine: EngineFace, repeat: int
) -> list[Generation]:
    prompts = [
        Prompt(
            f"sweep-{point.key}",
            max_tokens=point.output_len,
            length=point.input_len,
            seed=prompt_seed(spec.seed, point.input_len, repeat, slot),
        ).token_ids(engine.vocab_size)
        for slot in range(spec.concurrency)
    ]
    return engine.generate(prompts, max_tokens=point.output_len, ignore_eos=spec.ignore_eos)


def _request_record(
    spec: SweepSpec, point: PlannedPoint, generation: Generation, repeat: int, order: int
) -> dict[str, Any]:
    return {
        "t_send_ns": generation.t_send_ns,
        "token_ns": list(generation.token_ns),
        "prompt_len": generation.prompt_len,
        "prompt_len_requested": point.input_len,
        "num_tokens": len(generation.token_ids),
        "num_requested": point.output_len,
        "count_source": "engine",
        "ignore_eos": spec.ignore_eos,
        "finish_reason": generation.finish_reason,
        "bucket": generation.bucket,
        "padding_share": generation.padding_share,
        "num_prefill_steps": generation.num_prefill_steps,
        "repeat": repeat,
        "order": order,
    }


def _finish(state: _Measuring) -> SweepPoint:
    """The point's verdict: OK only if every request is what was asked for."""
    point = SweepPoint(
        key=state.plan.key,
        config=state.plan.config,
        status=PointStatus.OK,
        requests=tuple(state.requests),
        warmups=tuple(state.warmups),
        counters=state.counters[0],
        compile_events=state.compile_events,
    )
    failures = [failure for request in state.requests if (failure := failure_of(request))]
    if any(counters != state.counters[0] for counters in state.counters):
        failures.append("counters per step differ between requests of one shape")
    if failures:
        message = f"{len(failures)} of {len(state.requests)} requests failed: {failures[0]}"
        return replace(point, status=PointStatus.FAILED, message=message)
    return point
