"""The TTFT/TPOT matrix: points of equal settings share one engine, their requests interleaved.

Interleaving in a seeded random order keeps a drift of the machine from looking like an effect of
the input length. A point is recorded when its last request is done; the record is on disk before
the next request starts. Finished points are not run again (resume by key).
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from harness.core.engine_face import EngineFace, EngineFactory, Generation, step_rows
from harness.core.errors import RankError, UsageError
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import PlannedPoint, SweepSpec
from harness.core.token_suite import Prompt
from harness.run.counters import TOTALS
from harness.run.rounds import Progress, Wave, measure_rounds

__all__ = ["Progress", "prompt_seed", "run_sweep"]


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
        elif point.request_rate:
            message = f"request rate {point.request_rate:g} needs a server: sweep --online"
            yield SweepPoint(point.key, point.config, PointStatus.PRUNED, message)
    runnable = [point for point in waiting if not point.pruned and not point.request_rate]
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

    def wave(point: PlannedPoint, repeat: int) -> Wave:
        generations = _request(spec, point, engine, repeat)
        facts = engine.facts()
        return Wave(
            requests=[_request_record(spec, point, one) for one in generations],
            counters=[one.counters for one in generations],
            totals={name: facts[f"num_{name}"] for name in TOTALS if f"num_{name}" in facts},
        )

    return measure_rounds(spec, points, wave, progress=progress)


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
        for slot in range(point.concurrency)
    ]
    return engine.generate(prompts, max_tokens=point.output_len, ignore_eos=spec.ignore_eos)


def _request_record(spec: SweepSpec, point: PlannedPoint, generation: Generation) -> dict[str, Any]:
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
        # Tokens of one step share its stamp.
        "num_decode_steps": max(0, len(set(generation.token_ns)) - 1),
        "steps": step_rows(generation.steps),
        "counters": dict(generation.counters),
    }
