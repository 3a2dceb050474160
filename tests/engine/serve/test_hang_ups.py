"""Clients that leave, queues that fill, engines that fail."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from engine.serve.app import ServeOptions
from harness.core.errors import RankError
from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_engine

BODY = {"prompt": [7, 8, 9], "max_tokens": 100, "ignore_eos": True}


class Gate:
    """Lets the engine's steps through one at a time."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.is_open = False
        self.num_entered = 0

    def __call__(self, _: int) -> None:
        self.num_entered += 1
        while not self.is_open and not self.permits.acquire(timeout=0.05):
            pass

    def open(self) -> None:
        self.is_open = True


@pytest.fixture
def gate() -> Gate:
    return Gate()


def entered(server: RunningServer, gate: Gate, count: int) -> None:
    server.wait_until(lambda: gate.num_entered >= count)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_slot_and_pages_within_one_step(
    checkpoint: Path, gate: Gate, stream: bool
) -> None:
    engine = formula_engine(checkpoint, before_step=gate)
    with running(engine) as server:
        try:
            gate.permits.release(2)
            with server.http.stream(
                "POST", "/v1/completions", json={**BODY, "stream": True}
            ) as stays:
                entered(server, gate, 3)
                used = engine.limits.num_pages - 1 - engine.scheduler.pool.num_free_pages
                leaver = threading.Thread(
                    target=leave_after, args=(server, {**BODY, "stream": stream}, gate)
                )
                leaver.start()
                leaver.join()
                assert engine.scheduler.num_running == 2
                server.wait_until(lambda: server.bridge._commands.qsize() == 1)
                steps_before = gate.num_entered
                gate.permits.release(1)
                server.wait_until(lambda: engine.scheduler.num_running == 1)
                assert gate.num_entered <= steps_before + 1
                pool = engine.scheduler.pool
                assert engine.limits.num_pages - 1 - pool.num_free_pages == used
                assert pool.num_free_slots == engine.limits.max_num_seqs - 1
                gate.open()
                assert sum(part.count(b"data: {") for part in stays.iter_raw()) == 100
            server.wait_until(lambda: server.bridge.num_in_flight == 0)
            assert server.metric('neuron_harness_sequences_total{reason="abort"}') == 1
        finally:
            gate.open()


def leave_after(server: RunningServer, body: dict[str, object], gate: Gate) -> None:
    """Send a request, let it run for a step, and close the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(content), content)
        )
        server.wait_until(lambda: server.bridge.num_in_flight == 2)
        count = gate.num_entered
        gate.permits.release(2)
        entered(server, gate, count + 2)


def test_past_the_queue_the_answer_is_429_and_later_requests_are_taken_again(
    checkpoint: Path, gate: Gate
) -> None:
    engine = formula_engine(checkpoint, before_step=gate)
    num_slots = engine.limits.max_num_seqs
    with running(engine, ServeOptions(max_queue=2)) as server:
        try:
            threads = [
                threading.Thread(target=server.post, args=("/v1/completions",), kwargs=BODY)
                for _ in range(num_slots + 2)
            ]
            for thread in threads:
                thread.start()
            server.wait_until(lambda: server.bridge.num_in_flight == num_slots + 2)
            for stream in (False, True):
                refused = server.post("/v1/completions", **BODY, stream=stream)
                assert refused.status_code == 429
                assert refused.json()["error"]["type"] == "rate_limit_error"
        finally:
            gate.open()
        for thread in threads:
            thread.join()
        assert server.post("/v1/completions", **BODY).status_code == 200
        server.wait_until(lambda: engine.scheduler.pool.num_free_slots == num_slots)
        assert engine.scheduler.pool.num_free_pages == engine.limits.num_pages - 1


def test_a_rank_that_dies_becomes_every_calls_error_and_the_servers_health(
    checkpoint: Path,
) -> None:
    def die_at_the_fifth(step: int) -> None:
        if step == 4:
            raise RankError(1, "died with signal 9 (SIGKILL)")

    with running(formula_engine(checkpoint, before_step=die_at_the_fifth)) as server:
        answer = server.http.post("/v1/completions", json={**BODY, "stream": True})
        *tokens, last, rest = answer.text.split("\n\n")
        assert rest == ""
        assert len(tokens) == 4
        assert "rank 1 died with signal 9" in last
        assert "[DONE]" not in answer.text
        refused = server.post("/v1/completions", **BODY)
        assert refused.status_code == 503
        assert server.http.get("/health").status_code == 503
        assert isinstance(server.bridge.failure, RankError)


def test_closing_ends_what_still_runs(checkpoint: Path) -> None:
    engine = formula_engine(checkpoint, step_s=0.2)
    with running(engine) as server:
        thread = threading.Thread(target=lambda: _ignore_end(server))
        thread.start()
        server.wait_until(lambda: engine.scheduler.num_running == 1)
    thread.join(timeout=10)
    assert not thread.is_alive()


def _ignore_end(server: RunningServer) -> None:
    with suppress(httpx.HTTPError):
        httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=30, trust_env=False)
