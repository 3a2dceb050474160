"""`neuron-harness sweep --attach` and `--online` as a user types them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import engine
from harness.cli.engine_options import engine_arguments
from harness.cli.main import build_app
from harness.cli.op_choice import KERNEL_OPS
from harness.cli.served import started
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode
from harness.core.latency import failure_of
from harness.run.client.completion import CompletionRequest
from tests.engine.serve.running import running
from tests.fakes.formula_engine import formula_engine
from tests.harness.cli.command_line import run

CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "long"
MATRIX = """
input_lens = [4, 60, 200]
output_len = [3, 5]
concurrency = [1, 2]
num_warmups = 2
num_repeats = 2
request_rates = [0.0, 100.0]
"""


def records(out: Path) -> list[dict[str, Any]]:
    (ledger,) = out.glob("*/sweep.jsonl")
    return [json.loads(line)["payload"] for line in ledger.read_text().splitlines()]


def test_an_attached_server_is_swept_and_the_run_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "matrix.toml"
    spec.write_text(MATRIX)
    out = tmp_path / "runs"
    with running(formula_engine()) as server:
        options = ["sweep", "--spec", spec, "--attach", server.url, "--out", out]
        assert run(*options) == ExitCode.PASS
        first = records(out)
        statuses = [record["status"] for record in first]
        assert statuses.count("OK") == 2 * 2 * 2 * 2
        assert statuses.count("PRUNED") == 1 * 2 * 2 * 2
        (directory,) = out.iterdir()
        steps = server.bridge.snapshot.num_steps
        assert run(*options, "--run", directory) == ExitCode.PASS
        assert server.bridge.snapshot.num_steps == steps
    assert "16 of 24 points are already measured" in capsys.readouterr().out
    assert all(record["config"]["attached"] == server.url for record in first)


def test_no_server_at_the_url_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--attach", "http://127.0.0.1:9", "--out", tmp_path)
    assert run("sweep", *options) == ExitCode.CANNOT_JUDGE
    assert "cannot connect" in capsys.readouterr().out


def test_a_rate_needs_a_server(tmp_path: Path) -> None:
    spec = tmp_path / "matrix.toml"
    spec.write_text(
        "input_lens = [4]\noutput_len = 2\nnum_repeats = 1\nrequest_rates = [0.0, 5.0]\n"
    )
    options = ("--spec", spec, "--checkpoint", CHECKPOINT, "--out", tmp_path / "runs")
    assert run("sweep", *options) == ExitCode.PASS
    messages = {record["message"] for record in records(tmp_path / "runs")}
    assert messages == {"", "request rate 5 needs a server: sweep --online"}


class OpenedError(Exception):
    """Ends `serve` once it would open its engine."""


def opened_by_serve(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> EngineSettings:
    """The settings that `serve` typed with these options would open."""
    found: list[EngineSettings] = []

    def note(settings: EngineSettings) -> None:
        found.append(settings)
        raise OpenedError

    monkeypatch.setattr(engine, "LLM", note)
    with pytest.raises(OpenedError):
        build_app()(["serve", "--port", "0", *arguments])
    return found[0]


def test_every_setting_survives_the_way_through_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = EngineSettings(
        "somewhere",
        cp=4,
        ep=8,
        numerics="exact",
        ops=("references.op_table:TABLE", "kernels.op_table:TABLE"),
        fp8_max=240,
        max_model_len=100,
        max_num_batched_tokens=16,
        token_bucket=32,
        context_buckets=(64, 128),
        page_size=8,
        num_kv_blocks=40,
        num_threads=3,
        time_limit_s=3.5,
        speculative="dspark",
        confidence_threshold=0.25,
        device="neuron",
        allowed_fallbacks=("aten::sort", "aten::topk"),
        prefill="attention",
        enforce_eager=False,
        moe_capacity=7,
        compile_backend="aten",
    )
    for item in dataclasses.fields(settings):
        assert getattr(settings, item.name) != item.default, f"{item.name} is not tried here"
    assert opened_by_serve(monkeypatch, *engine_arguments(settings)) == settings


def test_serve_takes_the_ports_variables_and_an_ops_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_NEURON_NUM_KV_BLOCKS", "77")
    typed = ("--checkpoint", "somewhere", "--num-threads", "1")
    assert opened_by_serve(monkeypatch, *typed).num_kv_blocks == 77
    assert opened_by_serve(monkeypatch, *typed, "--num_kv_blocks", "5").num_kv_blocks == 5
    assert opened_by_serve(monkeypatch, *typed, "--ops", "kernels").ops == KERNEL_OPS
    assert opened_by_serve(monkeypatch, *typed, "--device", "neuron").ops == KERNEL_OPS


def test_a_started_server_hears_of_no_variable_that_its_record_does_not_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEEPINFER_NEURON_NUM_KV_BLOCKS", "3")  # too few for any request
    settings = EngineSettings(str(CHECKPOINT), numerics="exact", num_threads=1)
    with started(settings) as client:
        record = asyncio.run(client.complete(CompletionRequest([3] * 60, 2)))
    assert failure_of(record) is None


@pytest.mark.slow
def test_a_server_is_started_for_each_setting(tmp_path: Path) -> None:
    spec = tmp_path / "matrix.toml"
    spec.write_text(
        'input_lens = [4]\noutput_len = 3\nnumerics = ["exact", "fast"]\nnum_repeats = 1\n'
    )
    options = ("--spec", spec, "--checkpoint", CHECKPOINT, "--online", "--out", tmp_path / "runs")
    assert run("sweep", *options) == ExitCode.PASS
    found = records(tmp_path / "runs")
    assert [record["config"]["numerics"] for record in found] == ["exact", "fast"]
    assert {record["status"] for record in found} == {"OK"}
    assert {record["config"]["mode"] for record in found} == {"online"}


def servers_of(pid: int) -> list[int]:
    """Pids of `serve` processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes().split(b"\0")
            if parent == pid and b"--ends-with-stdin" in command:
                found.append(int(stat.parent.name))
    return found


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has reaped yet."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_sweep_takes_its_server_along_and_resumes(
    tmp_path: Path, ending: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "matrix.toml"
    spec.write_text(
        'input_lens = [4, 8, 12, 16]\noutput_len = 100\nnumerics = ["exact"]\nnum_repeats = 1\n'
    )
    options = [
        *("sweep", "--spec", spec, "--checkpoint", CHECKPOINT, "--online"),
        *("--out", tmp_path / "runs"),
    ]
    command = [sys.executable, "-c", "from harness.cli.main import main; main()", *options]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("runs/*/sweep.jsonl")) or not records(tmp_path / "runs"):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    servers = servers_of(process.pid)
    assert len(servers) == 1
    process.send_signal(ending)
    assert process.wait(timeout=60) == (130 if ending is signal.SIGINT else -9)
    while is_running(servers[0]):
        assert time.monotonic() < deadline, "the server lives on"
        time.sleep(0.05)
    (directory,) = (tmp_path / "runs").iterdir()
    kept = {one["key"]: one for one in records(tmp_path / "runs")}
    assert run(*options, "--run", directory) == ExitCode.PASS
    assert f"{len(kept)} of 4 points are already measured" in capsys.readouterr().out
    finished = {one["key"]: one for one in records(tmp_path / "runs")}
    assert len(finished) == 4
    assert {key: finished[key] for key in kept} == kept
