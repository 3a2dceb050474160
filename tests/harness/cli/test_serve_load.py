"""Many clients at once, every tenth of them hanging up mid-stream."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.core.latency import failure_of
from harness.run.client.completion import CompletionClient, CompletionRequest
from tests.harness.cli.test_serve import served
from tiny_checkpoints.generator import generate

NUM_REQUESTS = 200
CONCURRENCY = 32
NUM_TOKENS = 12
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * PAGE_BYTES / 2**20


def metric(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(lines[0].split()[-1]) if lines else 0.0


async def hang_up(url: str, prompt: list[int]) -> None:
    """Read the first event of a stream, then leave."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(
        {"prompt": prompt, "max_tokens": 100, "stream": True, "ignore_eos": True}
    ).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body)
    )
    await reader.readuntil(b"data: {")
    writer.transport.abort()


async def wave(url: str, num_requests: int, concurrency: int) -> list[dict[str, Any]]:
    client = CompletionClient(url, stall_s=300)
    permits = asyncio.Semaphore(concurrency)
    records: list[dict[str, Any]] = []

    async def one(number: int) -> None:
        prompt = [3 + (number * 7 + place) % 400 for place in range(1 + number % 24)]
        async with permits:
            if number % 10 == 9:
                await hang_up(url, prompt)
            else:
                request = CompletionRequest(prompt, NUM_TOKENS)
                records.append(await client.complete(request))

    await asyncio.gather(*(one(number) for number in range(num_requests)))
    return records


def assert_nothing_is_held(url: str, ended: dict[str, int]) -> None:
    """Pages, slots and queue are free again, and sequences ended as they should."""
    deadline = time.monotonic() + 60
    while metric(url, "neuron_harness_kv_pages_used"):
        assert time.monotonic() < deadline, "pages are still in use"
        time.sleep(0.05)
    assert metric(url, "neuron_harness_sequences_running") == 0
    assert metric(url, "neuron_harness_sequences_waiting") == 0
    assert ended == {
        reason: metric(url, f'neuron_harness_sequences_total{{reason="{reason}"}}')
        for reason in ended
    }


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--cp", "2"), marks=pytest.mark.slow),
        pytest.param(("--ep", "2", "--cp", "1"), marks=pytest.mark.slow),
    ],
)
def test_a_crowd_of_which_some_leave_early_leaves_nothing_behind(options: tuple[str, ...]) -> None:
    with served(*options) as (process, url):
        records = asyncio.run(wave(url, num_requests=30, concurrency=16))
        assert [failure for one in records if (failure := failure_of(one))] == []
        assert len(records) == 27
        assert_nothing_is_held(url, {"length": 27, "abort": 3, "error": 0})
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_error_no_leaked_page_and_flat_memory(tmp_path: Path) -> None:
    checkpoint = generate("tiny-A", tmp_path / "tiny-A")
    with served(checkpoint=checkpoint) as (process, url):
        resident = []
        for round_number in range(1, 4):
            records = asyncio.run(wave(url, NUM_REQUESTS, CONCURRENCY))
            assert [failure for one in records if (failure := failure_of(one))] == []
            assert len(records) == NUM_REQUESTS * 9 // 10
            num_hung_up = round_number * NUM_REQUESTS // 10
            ended = {"length": round_number * 180, "abort": num_hung_up, "error": 0}
            assert_nothing_is_held(url, ended)
            resident.append(resident_mib(process.pid))
        # The first round brings every shape up once; after that nothing may grow.
        print("resident MiB after each round:", [f"{size:.0f}" for size in resident])
        assert resident[2] < resident[0] * 1.05 + 8
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
