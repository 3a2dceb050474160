"""The two command lines that users of the port type, with only the program's name changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_LAYOUT = {"ep": 2, "cp": 2, "max_model_len": 264, "num_kv_blocks": 20}


def _options(spelling: str, checkpoint: Path, **more: object) -> list[object]:
    """`--model_name PATH --ep 2 …`, or the same with dashes."""
    values = {"model_name": checkpoint, **_LAYOUT, **more}
    return [
        part
        for name, value in values.items()
        for part in (f"--{name.replace('_', spelling)}", value)
    ]


@pytest.mark.parametrize("spelling", ["_", "-"])
def test_offline_inference_runs(
    command, checkpoint: Path, capsys: pytest.CaptureFixture[str], spelling: str
) -> None:
    options = _options(spelling, checkpoint, max_num_batched_tokens=8, max_tokens=3)
    assert command("generate", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["token_ids"]) == 3
    # cp=2 makes its two collectives a layer, of ten layers, and those of the vocabulary.
    assert found["counters"]["collectives"] == 22


@pytest.mark.parametrize(("name", "spelling"), [("bench_neuron", "_"), ("bench-neuron", "-")])
def test_the_matrix_runs(
    command, checkpoint: Path, tmp_path: Path, name: str, spelling: str
) -> None:
    options = _options(spelling, checkpoint, input_len="4,8,512", output_len=2)
    assert command(name, *options, "--repeats", 1, "--out", tmp_path) == 0
    (ledger,) = tmp_path.glob("*/sweep.jsonl")
    points = [json.loads(line)["payload"] for line in ledger.read_text().splitlines()]
    found = {point["config"]["input_len"]: point for point in points}
    assert [found[length]["status"] for length in (4, 8, 512)] == ["OK", "OK", "PRUNED"]
    assert "over max_model_len 264" in found[512]["message"]
    assert found[4]["config"]["num_kv_blocks"] == 20


def test_the_port_s_variable_gives_the_pool_where_no_option_does(
    command, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFER_NEURON_NUM_KV_BLOCKS", "40")
    options = ("--model_name", checkpoint, "--input_len", 4, "--output_len", 2, "--repeats", 1)
    assert command("bench_neuron", *options, "--out", tmp_path) == 0
    (ledger,) = tmp_path.glob("*/sweep.jsonl")
    assert json.loads(ledger.read_text())["payload"]["config"]["num_kv_blocks"] == 40


def test_without_a_device_nothing_is_measured_and_no_run_is_left(
    command, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--model_name", checkpoint, "--device", "neuron", "--out", tmp_path)
    assert command("bench_neuron", *options) == 3
    message = capsys.readouterr().err.strip()
    assert message.startswith("error: device neuron is missing")
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []
