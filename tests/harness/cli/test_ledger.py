"""The step ledger of an engine at work, its record and its report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from engine.graphs.region_times import OP
from harness.cli.step_ledger import _ops, _require_on_device, _Step, measure_ledger
from harness.core.engine_face import EngineSettings, Generation
from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.op_call import Argument, CountedCall, OpCall
from harness.core.step_ledger import PartKind, StepLedger
from harness.run.microbench import Calibration, Line, write_calibration
from harness.run.roofline import PLANNING
from reports.ledger import read_run
from reports.origin import Origin, origin_of
from reports.step_times import account_of
from tests.fakes_neuron.running import run_command
from tests.harness.cli.conftest import Command


@pytest.fixture(scope="module", params=[1, 2])
def found(request: pytest.FixtureRequest, checkpoint: Path) -> StepLedger:
    settings = EngineSettings(str(checkpoint), cp=request.param, num_threads=1)
    return measure_ledger(settings, input_len=20, num_steps=5)


def test_every_layer_and_every_collective_of_a_step_is_accounted_for(
    found: StepLedger, checkpoint: Path
) -> None:
    layers = [
        part
        for part in found.parts
        if part.kind is PartKind.REGION and part.name.startswith("layer") and " / " not in part.name
    ]
    num_layers = json.loads((checkpoint / "config.json").read_text())["text_config"][
        "num_hidden_layers"
    ]
    assert sum(part.calls for part in layers) == num_layers
    exchanged = {p.name: p.calls for p in found.parts if p.kind is PartKind.COLLECTIVE}
    if found.config["cp"] == 1:
        assert exchanged == {}
    else:
        # Two a layer, and the vocabulary's: embedding and argmax (model.md §9).
        assert exchanged == {"attention": num_layers, "moe": num_layers, "embed": 1, "argmax": 1}
    hosts = [part for part in found.parts if part.kind is PartKind.HOST]
    assert len(hosts) == 2


def test_parts_and_residual_add_up_to_the_step(found: StepLedger) -> None:
    account = account_of(found)
    shares = [line.share for line in account.lines if line.kind != "step"]
    assert sum(shares) == pytest.approx(1.0)
    assert 0 <= account.unexplained_share < 0.5
    assert len(found.step_ns) == len(found.untimed_step_ns) == 5
    total = sum(found.step_ns)
    spent = sum(sum(part.self_ns) for part in found.parts)
    assert account.unexplained_share == pytest.approx((total - spent) / total)


def test_ops_are_estimated_by_shapes_and_measured(found: StepLedger) -> None:
    ops = {op.op: op for op in found.ops}
    assert {"linear_fp8", "sparse_attention", "router", "vocab_argmax"} <= set(ops)
    assert all(op.estimate_ns >= 2000 * op.calls for op in found.ops)
    assert all(len(op.measured_ns) == 5 for op in found.ops)
    regions_ns = sum(sum(part.self_ns) for part in found.parts)
    assert sum(sum(op.measured_ns) for op in found.ops) < regions_ns
    assert found.calibration == "uncalibrated (planning figures of Trainium2)"


def test_the_command_records_and_the_report_shows_it(
    command: Command, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constants = tmp_path / "calibration.json"
    line = Line("launch", 1, {}, 9000.0, 0.0, 1, 0.0)
    write_calibration(constants, Calibration("device", (line,), (), {}))
    runs = tmp_path / "runs"
    asked = ("ledger", "--checkpoint", checkpoint, "--input-len", 8, "--steps", 3, "--out", runs)
    assert command(*asked, "--calibration", constants) == 0
    assert "calibrated on this device" in capsys.readouterr().out
    (run,) = runs.iterdir()
    (entry,) = read_run(run).of_kind("step")
    assert entry.payload["status"] == "OK"
    assert command("report", run, "--format", "md,html,csv", "--out", tmp_path / "report") == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "## Decode step" in text
    assert f"step.jsonl#L{entry.line}" in text
    assert "calibrated on this device" in text
    page = (tmp_path / "report" / "report.html").read_text()
    assert "unexplained" in page
    assert f"#{entry.anchor}" in page
    (row,) = csv.DictReader((tmp_path / "report" / "csv" / "step.csv").read_text().splitlines())
    assert float(row["unexplained_share"]) < 1
    assert json.loads(row["op_estimate_ms"])["vocab_argmax"] >= 0.009


def test_ops_within_compiled_regions_have_no_time_and_the_command_says_so(
    command: Command, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (
        "ledger",
        "--checkpoint",
        checkpoint,
        "--input-len",
        5,
        "--steps",
        2,
        "--out",
        tmp_path,
    )
    assert command(*asked, "--no-enforce-eager", "--compile-backend", "aten") == 0
    assert "within compiled regions too, where no op is timed" in " ".join(
        capsys.readouterr().out.split()
    )
    (run,) = tmp_path.iterdir()
    (entry,) = read_run(run).of_kind("step")
    ops = {op["op"]: op for op in entry.payload["ops"]}
    # Experts and the choice of the token run between regions.
    assert {name for name, op in ops.items() if op["measured_ns"]} == {
        "linear_fp4_grouped",
        "vocab_argmax",
    }
    assert ops["linear_fp8"]["calls"] > 0
    assert all(op["estimate_ns"] > 0 for op in ops.values())
    attention = [part for part in entry.payload["parts"] if part["name"].endswith("/ attention")]
    assert attention
    assert all(min(part["self_ns"]) > 0 for part in attention)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_steps": 0}, "at least 1"),
        ({"num_steps": 500}, "max_model_len is"),
        ({"speculative": "dspark"}, "plain decode steps"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused(
    checkpoint: Path, changes: dict[str, object], said: str
) -> None:
    steps = int(str(changes.pop("num_steps", 4)))
    settings = EngineSettings(str(checkpoint), num_threads=1, **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        measure_ledger(settings, 8, steps)


def test_a_record_whose_parts_do_not_fit_its_steps_is_refused(
    command: Command, found: StepLedger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.run.store import new_run

    with new_run(tmp_path, command=["x"], environment={}, run_id="r") as store:
        store.append("step", "k", found)
    file = tmp_path / "r" / "step.jsonl"
    body = json.loads(file.read_text())
    body["payload"]["parts"][0]["self_ns"].pop()
    file.write_text(json.dumps(body) + "\n")
    assert command("report", tmp_path / "r") == 2
    assert "one time a step (5)" in capsys.readouterr().err


@pytest.mark.slow
def test_on_the_stand_in_host_regions_wait_for_the_device_and_nothing_is_calibrated(
    checkpoint: Path, tmp_path: Path
) -> None:
    asked = ("ledger", "--device", "neuron", "--ops", "references", "--checkpoint", checkpoint)
    done = run_command(*asked, "--input-len", 4, "--steps", 2, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (path.parent for path in tmp_path.glob("*/run.json"))
    (entry,) = read_run(run).of_kind("step")
    assert origin_of(entry) is Origin.STAND_IN
    assert entry.payload["config"]["device"] == "neuron"
    assert entry.payload["calibration"].startswith("uncalibrated")
    assert any(part["name"].endswith("attention") for part in entry.payload["parts"])


def test_an_op_of_which_regions_hide_calls_has_no_time() -> None:
    x = Argument("tensor", "bfloat16", ((1, 8),))
    calls = [CountedCall(OpCall(op, (x,)), 3, 16) for op in ("rms_norm", "rope", "swiglu")]
    times = {(OP, "rms_norm"): (1, 50), (OP, "rope"): (3, 60)}
    steps = [_Step(0, 0, times), _Step(0, 0, times)]
    compiled = {op.op: op.measured_ns for op in _ops(calls, steps, PLANNING, is_eager=False)}
    assert compiled == {"rms_norm": (), "rope": (60, 60), "swiglu": ()}
    eager = {op.op: op.measured_ns for op in _ops(calls, steps, PLANNING, is_eager=True)}
    assert eager == {"rms_norm": (50, 50), "rope": (60, 60), "swiglu": ()}
    assert {op.calls for op in _ops(calls, steps, PLANNING, is_eager=True)} == {3}


def test_a_step_that_left_the_device_has_no_ledger(checkpoint: Path, tmp_path: Path) -> None:
    settings = EngineSettings(str(checkpoint), device="neuron")
    said = Generation((1,), "length", 0, (1,), 1, counters={"fallback aten::sort": 2.0})
    with pytest.raises(MissingEvidenceError, match="aten::sort"):
        _require_on_device(settings, said)
