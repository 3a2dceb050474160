"""NVIDIA's AIPerf, unmodified: its own report agrees with what the server counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.agreement import ServerLog, assert_close
from tests.clients.conftest import Client
from tests.engine.serve.running import RunningServer

NUM_REQUESTS = 12
NUM_WARMUPS = 6
NUM_IN, NUM_OUT = 16, 80


@pytest.mark.clients
@pytest.mark.parametrize(
    ("kind", "path"), [("completions", "/v1/completions"), ("chat", "/v1/chat/completions")]
)
def test_counts_are_equal_and_latencies_within_two_percent(
    server: RunningServer,
    client: Client,
    tokenizer_only: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    path: str,
) -> None:
    client(
        "aiperf",
        "aiperf",
        *("profile", "--model", "formula", "--url", server.url),
        *("--endpoint-type", kind, "--streaming", "--tokenizer", tokenizer_only),
        *("--isl", NUM_IN, "--isl-stddev", 0, "--osl", NUM_OUT, "--osl-stddev", 0),
        *("--request-count", NUM_REQUESTS, "--concurrency", 6, "--random-seed", 3),
        # Its workers load their parts with the first requests; the report leaves these out.
        *("--warmup-request-count", NUM_WARMUPS),
        *("--extra-inputs", "ignore_eos:true", "--use-server-token-count"),
        *("--artifact-dir", tmp_path / "out", "--ui", "none"),
        *("--no-gpu-telemetry", "--no-server-metrics"),
    )
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == NUM_REQUESTS
    assert report["request_error_rate"]["avg"] == 0
    assert report["output_sequence_length"]["avg"] == NUM_OUT
    generated = server.metric("neuron_harness_generation_tokens_total")
    assert report["total_osl"]["avg"] == generated - NUM_WARMUPS * NUM_OUT
    log = ServerLog.of(caplog, path)
    assert log.completion_tokens == (NUM_OUT,) * (NUM_WARMUPS + NUM_REQUESTS)
    # AIPerf calls vLLM's TPOT the inter token latency.
    for name, served_ms in (
        ("time_to_first_token", log.ttft_ms[NUM_WARMUPS:]),
        ("inter_token_latency", log.tpot_ms[NUM_WARMUPS:]),
    ):
        found = report[name]
        assert_close(f"aiperf {kind} {name}", found["avg"], found["p50"], served_ms)
