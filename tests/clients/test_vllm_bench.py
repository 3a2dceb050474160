"""`vllm bench serve`, unmodified: its own result file agrees with what the server counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.core.latency import measure_requests
from harness.run.interchange import import_result
from tests.clients.agreement import ServerLog, assert_close
from tests.clients.conftest import Client
from tests.engine.serve.running import RunningServer

NUM_REQUESTS = 12
NUM_WARMUPS = 6
NUM_IN, NUM_OUT = 16, 80

# The subcommand itself; the program around it would import the engine's compiled parts.
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.mark.clients
@pytest.mark.parametrize(
    ("backend", "path"),
    [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")],
)
def test_counts_are_equal_and_latencies_within_two_percent(
    server: RunningServer,
    client: Client,
    tokenizer_only: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    backend: str,
    path: str,
) -> None:
    out = tmp_path / "run=0.json"
    client(
        "vllm",
        "python",
        *("-c", BENCH_SERVE, "--backend", backend, "--base-url", server.url, "--endpoint", path),
        *("--model", "formula", "--tokenizer", tokenizer_only, "--ignore-eos"),
        *("--dataset-name", "random", "--random-input-len", NUM_IN),
        *("--random-output-len", NUM_OUT, "--num-prompts", NUM_REQUESTS),
        # Its first requests open connections and load tokenizer parts; the report leaves them out.
        *("--num-warmups", NUM_WARMUPS),
        *("--max-concurrency", 6, "--save-result", "--save-detailed", "--result-filename", out),
    )
    result = json.loads(out.read_text())
    assert (result["completed"], result["failed"]) == (NUM_REQUESTS, 0)
    generated = server.metric("neuron_harness_generation_tokens_total")
    assert result["total_output_tokens"] == NUM_REQUESTS * NUM_OUT
    assert generated == (NUM_WARMUPS + NUM_REQUESTS) * NUM_OUT
    log = ServerLog.of(caplog, path)
    assert sorted(log.completion_tokens[NUM_WARMUPS:]) == sorted(result["output_lens"])
    for name, served_ms in (
        ("ttft", log.ttft_ms[NUM_WARMUPS:]),
        ("tpot", log.tpot_ms[NUM_WARMUPS:]),
    ):
        assert_close(
            f"vllm {backend} {name}",
            result[f"mean_{name}_ms"],
            result[f"median_{name}_ms"],
            served_ms,
        )
    ours = measure_requests(import_result(out)["requests"])
    assert sum(ours.tpot_ms) / len(ours.tpot_ms) == pytest.approx(result["mean_tpot_ms"], rel=1e-6)
