"""GuideLLM, unmodified: its own report agrees with what the server counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.agreement import ServerLog, assert_close
from tests.clients.conftest import Client
from tests.engine.serve.running import RunningServer

NUM_REQUESTS = 12
NUM_IN, NUM_OUT = 16, 80


@pytest.mark.clients
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_counts_are_equal_and_latencies_within_two_percent(
    server: RunningServer,
    client: Client,
    tokenizer_only: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    out = tmp_path / "out.json"
    backend = f"kind=openai_http,target={server.url},model=formula,request_format={path}"
    data = f"kind=synthetic_text,prompt_tokens={NUM_IN},output_tokens={NUM_OUT}"
    client(
        "guidellm",
        "guidellm",
        *("run", "--backend", backend, "--data", data),
        *("--profile", "kind=concurrent,streams=6"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer_only}"),
        *("--output", f"kind=json,path={out}", "--disable-console-interactive"),
    )
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0)
    output = metrics["output_token_count"]["successful"]
    assert output["mean"] == NUM_OUT
    assert output["total_sum"] == server.metric("neuron_harness_generation_tokens_total")
    prompt = metrics["prompt_token_count"]["successful"]["total_sum"]
    assert prompt == server.metric("neuron_harness_prompt_tokens_total")
    log = ServerLog.of(caplog, path)
    assert log.completion_tokens == (NUM_OUT,) * NUM_REQUESTS
    assert sum(log.prompt_tokens) == prompt
    # What GuideLLM calls time per output token includes the first token; this one does not.
    for name, served_ms in (
        ("time_to_first_token_ms", log.ttft_ms),
        ("inter_token_latency_ms", log.tpot_ms),
    ):
        found = metrics[name]["successful"]
        assert_close(f"guidellm {path} {name}", found["mean"], found["median"], served_ms)
