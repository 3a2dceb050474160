"""`neuron-harness sweep --attach` and `--online` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.engine_options import engine_arguments, engine_settings
from harness.cli.main import main
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode
from tests.engine.serve.running import running
from tests.fakes.formula_engine import formula_engine

CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "long"
MATRIX = """
input_lens = [4, 60, 200]
output_len = [3, 5]
concurrency = [1, 2]
num_warmups = 2
num_repeats = 2
request_rates = [0.0, 100.0]
"""


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


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


def test_settings_survive_the_way_through_the_command_line() -> None:
    settings = EngineSettings(
        "somewhere",
        cp=4,
        numerics="exact",
        ops=("references.op_table:TABLE", "kernels.op_table:TABLE"),
        context_buckets=(64, 128),
        num_kv_blocks=40,
        time_limit_s=3.5,
        speculative="dspark",
    )
    arguments = engine_arguments(settings)
    typed: dict[str, Any] = {"ops": []}
    for option, value in zip(arguments[::2], arguments[1::2], strict=True):
        name = option.removeprefix("--").replace("-", "_")
        if name == "ops":
            typed["ops"].append(value)
        else:
            default = getattr(EngineSettings("x"), name)
            typed[name] = value if isinstance(default, (str, tuple)) else type(default)(value)
    assert engine_settings(typed) == settings


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
