"""The TTFT/TPOT matrix through a server: the same points, rounds and metrics as offline."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby
from typing import Any

from harness.core.engine_face import EngineSettings
from harness.core.errors import HarnessError, MissingEvidenceError, UsageError
from harness.core.latency import failure_of
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import PlannedPoint, SweepSpec, point_key
from harness.core.token_suite import Prompt
from harness.run.client.completion import CompletionClient, CompletionRequest
from harness.run.client.connection import ExchangeError
from harness.run.counters import TOTALS
from harness.run.load import ArrivalPlan, run_load
from harness.run.other_work import OtherWork
from harness.run.rounds import Progress, Wave, measure_rounds
from harness.run.sweep import prompt_seed

__all__ = [
    "ServerGoneError",
    "attached_points",
    "online_point",
    "run_online_sweep",
    "served_vocab_size",
]

# Opens a server for one setting; gives a client of it and ends it with the block.
ServerFactory = Callable[[EngineSettings], AbstractContextManager[CompletionClient]]


_ENGINE_COUNT = re.compile(
    r'^neuron_harness_engine_counts_total\{name="(\w+)"\} (\S+)$', re.MULTILINE
)


class ServerGoneError(HarnessError):
    """The server stopped answering; its unmeasured points become CRASHED."""


def online_point(point: PlannedPoint, **facts: Any) -> PlannedPoint:
    """The same cell measured through a server, which is another key."""
    config = {**point.config, "mode": "online", **facts}
    return replace(point, key=point_key(config), config=config)


def attached_points(
    spec: SweepSpec, url: str, model: str, max_model_len: int
) -> tuple[PlannedPoint, ...]:
    """Cells of a server that somebody else runs: its settings are not ours to know.

    Args:
        max_model_len: as /v1/models says; 0 prunes nothing.
    """
    first = replace(
        spec, cps=spec.cps[:1], eps=spec.eps[:1], numerics=spec.numerics[:1], bucket_sets=()
    )
    first = replace(first, ops=spec.ops[:1], engine={})
    points = first.points("", checkpoint_id="", max_model_len=max_model_len)
    unknown = {"numerics": "served", "cp": 0, "ep": 0, "ops": ["served"]}
    return tuple(
        online_point(point, **unknown, attached=url, served_model=model) for point in points
    )


def run_online_sweep(
    spec: SweepSpec,
    points: Sequence[PlannedPoint],
    open_server: ServerFactory,
    *,
    vocab_size: int,
    finished: Iterable[str] = (),
    progress: Progress = lambda *_: None,
) -> Generator[SweepPoint, None, None]:
    """Measure points; each is yielded as soon as it is complete, for the caller to record.

    One server serves the points of a setting, their repeats interleaved; after a crash a new one
    is opened for those that are left.

    Args:
        vocab_size: random prompts draw their ids below it.

    Raises:
        UsageError: every point is pruned.
        MissingEvidenceError: the server does not come up.
    """
    behind = set(finished)
    if all(point.pruned for point in points):
        raise UsageError(f"sweep {spec.name!r}: no point can run; {points[0].pruned}")
    waiting = [point for point in points if point.key not in behind]
    for point in waiting:
        if point.pruned:
            yield SweepPoint(point.key, point.config, PointStatus.PRUNED, point.pruned)
    runnable = [point for point in waiting if not point.pruned]
    for settings, group in groupby(runnable, key=lambda point: point.settings):
        remaining = list(group)
        while remaining:
            at_work: PlannedPoint | None = None
            try:
                with open_server(settings) as client:
                    wave = _waves(spec, client, vocab_size)
                    rounds = measure_rounds(
                        spec, tuple(remaining), wave, progress=progress, watch=_watch_of(remaining)
                    )
                    for at_work, done in rounds:
                        if done is not None:
                            remaining.remove(at_work)
                            yield done
            except ServerGoneError as error:
                lost = at_work if at_work in remaining else remaining[0]
                assert lost is not None
                remaining.remove(lost)
                yield SweepPoint(lost.key, lost.config, PointStatus.CRASHED, str(error))


def _watch_of(points: Sequence[PlannedPoint]) -> Callable[[], OtherWork | None]:
    """A server that somebody else runs would itself be taken for the work of others."""
    return (lambda: None) if "attached" in points[0].config else OtherWork


def _waves(
    spec: SweepSpec, client: CompletionClient, vocab_size: int
) -> Callable[[PlannedPoint, int], Wave]:
    def wave(point: PlannedPoint, repeat: int) -> Wave:
        requests = [_request(spec, point, repeat, slot, vocab_size) for slot in _slots(point)]
        plan = ArrivalPlan()
        # A warm-up has no rate to keep: it only brings every shape up once.
        if point.request_rate and repeat >= 0:
            seed = prompt_seed(spec.seed, point.input_len, repeat, -1)
            plan = ArrivalPlan(spec.arrival, point.request_rate, seed)
        before = _engine_counts(client)
        cpu_start_s, start_s = time.process_time(), time.perf_counter()
        records = asyncio.run(run_load(client, requests, plan, point.concurrency))
        share = (time.process_time() - cpu_start_s) / (time.perf_counter() - start_s)
        for record in records:
            record["client_cpu_share"] = share
        if all(failure_of(record) for record in records):
            _check_alive(client, str(failure_of(records[0])))
        after = _engine_counts(client)
        counters = [record["counters"] for record in records if "counters" in record]
        return Wave(
            records,
            counters=counters if len(counters) == len(records) else (),
            totals=_grown(before, after),
            is_alone=point.concurrency == 1,
        )

    return wave


def _check_alive(client: CompletionClient, failure: str) -> None:
    try:
        status, _ = asyncio.run(client.get("/health"))
    except ExchangeError as error:
        raise ServerGoneError(f"{failure}; then the server was gone: {error}") from error
    if status >= 500:
        raise ServerGoneError(f"{failure}; then /health said {status}")


def _grown(
    before: Mapping[str, float] | None, after: Mapping[str, float] | None
) -> dict[str, float]:
    """Of TOTALS, by how much each grew; a count the engine has not begun is not told yet."""
    if before is None or after is None:
        return {}
    return {name: after[name] - before.get(name, 0.0) for name in TOTALS if name in after}


def _engine_counts(client: CompletionClient) -> dict[str, float] | None:
    """What the server's engine counted since it started; None where it cannot be asked."""
    try:
        status, body = asyncio.run(client.get("/metrics"))
    except ExchangeError:
        return None
    if status != 200:
        return None
    text = body.decode("utf-8", errors="replace")
    return {found[1]: float(found[2]) for found in _ENGINE_COUNT.finditer(text)}


def _slots(point: PlannedPoint) -> Iterator[int]:
    return iter(range(point.num_prompts))


def _request(
    spec: SweepSpec, point: PlannedPoint, repeat: int, slot: int, vocab_size: int
) -> CompletionRequest:
    seed = prompt_seed(spec.seed, point.input_len, repeat, slot)
    prompt = Prompt(f"sweep-{point.key}", point.output_len, length=point.input_len, seed=seed)
    ids = prompt.token_ids(vocab_size)
    return CompletionRequest(ids, point.output_len, ignore_eos=spec.ignore_eos)


def served_vocab_size(client: CompletionClient, default: int) -> int:
    """What /tokenizer_info says, else the default.

    Raises:
        MissingEvidenceError: the server cannot be reached.
    """
    try:
        status, body = asyncio.run(client.get("/tokenizer_info"))
        value = json.loads(body).get("vocab_size") if status == 200 else None
    except ExchangeError as error:
        raise MissingEvidenceError(f"{client.address.netloc}: {error}") from error
    except (ValueError, AttributeError):
        return default
    return value if isinstance(value, int) and value > 0 else default
