"""The matrix through a server: same points, same metrics, crashes and refusals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError
from harness.core.latency import failure_of, measure_requests
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import SweepSpec
from harness.run.client.completion import CompletionClient, CompletionRequest
from harness.run.online import (
    attached_points,
    online_point,
    run_online_sweep,
    served_vocab_size,
)
from tests.engine.serve.running import running
from tests.fakes.fault_server import NUM_TOKENS, PROMPT_LEN, fault_server
from tests.fakes.formula_engine import NO_COLLECTIVES, VOCAB_SIZE, formula_engine

SPEC = SweepSpec(
    "test",
    input_lens=(4, 20),
    output_len=6,
    concurrencies=(1, 3),
    num_repeats=2,
    num_warmups=3,
    num_prompts=3,
)


class Servers:
    """Formula servers, one a call; the numbered ones fail at a step."""

    def __init__(
        self,
        fail_at: dict[int, int] | None = None,
        counters: Mapping[str, float] = NO_COLLECTIVES,
    ) -> None:
        self.fail_at = fail_at or {}
        self.counters = counters
        self.opened: list[EngineSettings] = []
        self.prompts: list[tuple[int, ...]] = []

    @contextmanager
    def __call__(self, settings: EngineSettings) -> Iterator[CompletionClient]:
        number = len(self.opened)
        self.opened.append(settings)

        def before_step(step: int) -> None:
            if step == self.fail_at.get(number, -1):
                raise RuntimeError("the device is gone")

        engine = formula_engine(before_step=before_step, counters=self.counters)
        with running(engine) as server:
            client = CompletionClient(server.url, stall_s=20)
            yield client
        for plan in engine.executor.plans:  # type: ignore[attr-defined]
            self.prompts += [chunk.token_ids for chunk in plan.chunks if chunk.start == 0]


def points_of(spec: SweepSpec, limit: int = 128) -> list[Any]:
    return [online_point(point) for point in spec.points("ckpt", "0123", limit)]


def swept(servers: Servers, spec: SweepSpec = SPEC, **options: Any) -> list[SweepPoint]:
    return list(run_online_sweep(spec, points_of(spec), servers, vocab_size=VOCAB_SIZE, **options))


def test_every_point_is_measured_on_one_server_with_the_offline_metrics() -> None:
    servers = Servers()
    points = swept(servers)
    assert len(servers.opened) == 1
    assert [point.status for point in points] == [PointStatus.OK] * 4, points[0].message
    for point in points:
        samples = measure_requests(point.requests)
        assert samples.num_completed == 2 * 3
        assert len(samples.ttft_ms) == len(samples.tpot_ms) == 6
        assert len(point.warmups) == 3
        assert point.config["mode"] == "online"
        assert {request["count_source"] for request in point.requests} == {"usage"}
        assert {request["prompt_len"] for request in point.requests} == {point.config["input_len"]}
        assert all(request["client_cpu_share"] > 0 for request in point.requests)
        assert point.facts["num_repeats"] == 2
    orders = {point.key: {request["order"] for request in point.requests} for point in points}
    assert len(set().union(*orders.values())) == 8
    # Every request of a cell has a prompt of its own; cells of one length share them.
    assert len(servers.prompts) == 4 * 9
    assert len({prompt[:4] for prompt in servers.prompts}) == 2 * 9


def test_a_record_holds_what_the_engine_knows_as_an_offline_record_does() -> None:
    for point in swept(Servers()):
        assert {request["num_decode_steps"] for request in point.requests} == {5}
        assert {request["counters"]["collectives"] for request in point.requests} == {0.0}
        assert point.counters["collectives"] == 0.0
        assert point.compile_events is None
        assert {request["num_prefill_steps"] for request in point.requests} <= {1, 2, 3}
        if point.config["concurrency"] == 1:
            # The oracle's engine takes 16 rows a step.
            shapes = {(r["bucket"], r["padding_share"]) for r in point.requests}
            assert shapes == {(16, 0.0) if point.config["input_len"] == 20 else (16, 0.75)}


def test_overflows_and_compile_events_are_those_of_the_measured_steps() -> None:
    counters = {"collectives": 3.0, "moe_overflows": 1.0, "compile_events": 2.0}
    spec = replace(SPEC, input_lens=(4,), concurrencies=(1,), num_warmups=1, num_prompts=1)
    (point,) = swept(Servers(counters=counters), spec)
    # Two repeats of one request: a step of its prompt and one a further token; warm-ups excluded.
    num_steps = 2 * 6
    assert point.counters["moe_overflows"] == num_steps
    assert point.compile_events == 2 * num_steps
    assert point.counters["collectives"] == 3.0
    assert "moe_dense_reruns" not in point.counters


def test_a_server_of_somebody_else_leaves_these_null() -> None:
    with fault_server() as url:
        client = CompletionClient(url, model="none")
        record = asyncio.run(client.complete(CompletionRequest([3] * PROMPT_LEN, NUM_TOKENS)))
    assert failure_of(record) is None
    told = ("bucket", "padding_share", "num_prefill_steps", "num_decode_steps")
    assert {name: record[name] for name in told} == dict.fromkeys(told)
    assert "counters" not in record


def test_online_and_offline_cells_have_different_keys() -> None:
    offline = SPEC.points("ckpt", "0123", 128)
    assert {point.key for point in offline}.isdisjoint(point.key for point in points_of(SPEC))


def test_a_rate_gives_arrivals_and_queue_times() -> None:
    spec = SweepSpec(
        "rate",
        input_lens=(4,),
        output_len=2,
        request_rates=(0.0, 200.0),
        arrival="constant",
        num_prompts=4,
    )
    closed, open_loop = sorted(
        swept(Servers(), spec), key=lambda point: point.config.get("request_rate", 0)
    )
    assert measure_requests(closed.requests).queue_ms == ()
    arrivals = [request["t_arr_ns"] for request in open_loop.requests[:4]]
    assert [late - arrivals[0] for late in arrivals] == [0, 5_000_000, 10_000_000, 15_000_000]
    assert len(measure_requests(open_loop.requests).queue_ms) == 12
    assert open_loop.config["arrival"] == "constant"


def test_a_server_that_dies_costs_one_point_and_is_opened_again() -> None:
    servers = Servers(fail_at={0: 40})
    points = swept(servers)
    statuses = [point.status for point in points]
    assert statuses.count(PointStatus.CRASHED) == 1
    assert statuses.count(PointStatus.OK) == 3
    assert len(servers.opened) == 2
    crashed = next(point for point in points if point.status == PointStatus.CRASHED)
    assert "the device is gone" in crashed.message
    assert len({point.key for point in points}) == 4


def test_finished_points_are_not_measured_again_and_too_long_ones_are_pruned() -> None:
    first = swept(Servers())
    servers = Servers()
    assert swept(servers, finished=[point.key for point in first]) == []
    assert servers.opened == []
    pruned = list(
        run_online_sweep(
            SPEC,
            points_of(SPEC, limit=20),
            Servers(),
            vocab_size=VOCAB_SIZE,
            finished=[point.key for point in points_of(SPEC, limit=20) if not point.pruned],
        )
    )
    assert [point.status for point in pruned] == [PointStatus.PRUNED] * 2
    with pytest.raises(UsageError, match="no point can run"):
        list(run_online_sweep(SPEC, points_of(SPEC, limit=5), Servers(), vocab_size=VOCAB_SIZE))


def test_an_attached_server_is_measured_by_what_it_says_of_itself() -> None:
    with running(formula_engine()) as server:
        client = CompletionClient(server.url)
        facts = asyncio.run(client.facts())
        assert facts["max_model_len"] == 128
        assert served_vocab_size(client, 256) == 256  # this one has no tokenizer
        points = attached_points(SPEC, server.url, client.model, 25)
        assert [bool(point.pruned) for point in points] == [False, True] * 2
        assert points[0].config["attached"] == server.url
        assert points[0].config["numerics"] == "served"


@pytest.mark.parametrize("fault", ["wrong_prompt_length", "too_few", "malformed_json"])
def test_wrong_answers_make_a_failed_point_that_keeps_its_requests(fault: str) -> None:
    spec = SweepSpec("fault", input_lens=(3,), output_len=4, num_repeats=2)

    with fault_server() as url:

        @contextmanager
        def opened(_: EngineSettings) -> Iterator[CompletionClient]:
            yield CompletionClient(url, model=fault)

        (point,) = run_online_sweep(spec, points_of(spec), opened, vocab_size=64)
    assert point.status == PointStatus.FAILED
    assert "2 of 2 requests failed" in point.message
    assert len(point.requests) == 2
    assert measure_requests(point.requests).ttft_ms == ()


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    swept(Servers(), SweepSpec("one", input_lens=(4,), output_len=2, num_repeats=1))
    assert threading.active_count() == before
