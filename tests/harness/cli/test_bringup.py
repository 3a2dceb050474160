"""The stages of a bring-up, and the bring-up itself on this CPU and on the stand-in host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.bringup import BringupPlan, stages_of
from suites.loader import load_token_suite
from tests.fakes_neuron.running import run_command, run_here


def _plan(checkpoint: Path, work: Path, cp: int = 4, backend: str = "device") -> BringupPlan:
    return BringupPlan(checkpoint, work, cp, 0, backend)


def test_stages_lead_from_one_op_to_the_real_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    names = [stage.name for stage in stages_of(_plan(checkpoint, tmp_path / "w"))]
    assert names == [
        "doctor", "one-op", "all-ops", "one-layer", "ranks-1", "ranks-2", "ranks-4", "slice", "real"
    ]  # fmt: skip


def test_ops_get_the_time_that_a_compile_takes(checkpoint: Path, tmp_path: Path) -> None:
    plan = BringupPlan(checkpoint, tmp_path / "w", 1, 0, "device", time_limit_s=1234.0)
    stages = {stage.name: stage.commands[0] for stage in stages_of(plan)}
    for name in ("one-op", "all-ops"):
        words = stages[name]
        assert words[words.index("--time-limit-s") + 1] == "1234.0"


def test_many_ranks_need_a_checkpoint_with_as_many_heads(checkpoint: Path, tmp_path: Path) -> None:
    stages = {stage.name: stage for stage in stages_of(_plan(checkpoint, tmp_path / "w", cp=64))}
    assert stages["ranks-64"].commands[0][2] == "tiny-D"


def test_the_candidate_runs_kernels_on_the_device_and_the_oracle_neither(
    checkpoint: Path, tmp_path: Path
) -> None:
    stages_of(_plan(checkpoint, tmp_path / "w"))
    (pair,) = load_token_suite(str(tmp_path / "w" / "ranks-4.toml")).pairs
    assert (pair.candidate.device, pair.candidate.cp) == ("neuron", 4)
    assert pair.candidate.ops[-1] == "kernels.op_table:TABLE"
    assert (pair.oracle.device, pair.oracle.fp8_max) == ("cpu", 240)
    assert pair.oracle.ops == ("references.op_table:TABLE",)
    (noise,) = pair.noise
    assert (noise.device, noise.cp, noise.ops) == ("cpu", 2, pair.oracle.ops)


def test_on_a_cpu_backend_no_stage_asks_for_the_device(checkpoint: Path, tmp_path: Path) -> None:
    stages = stages_of(_plan(checkpoint, tmp_path / "w", backend="interpret"))
    assert not [c for stage in stages for c in stage.commands if "neuron" in c]


def test_an_absent_checkpoint_or_an_unknown_backend_is_refused(
    command, tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("bringup", "--checkpoint", tmp_path / "none", "--out", tmp_path) == 2
    assert command("bringup", "--checkpoint", checkpoint, "--backend", "cpu") == 2
    assert "choose interpret, simulate, device" in capsys.readouterr().err


def test_without_a_device_the_first_op_is_red_and_says_why(
    command, tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = command(
        "bringup", "--checkpoint", checkpoint, "--cp", 1, "--until", "one-op", "--out", tmp_path
    )
    printed = capsys.readouterr().out
    assert code == 3
    assert "RED       one-op" in printed
    assert "nki is not installed" in printed
    assert (tmp_path / "bringup-device-cp1" / "02-one-op.log").is_file()


@pytest.mark.slow
@pytest.mark.timeout(2400)  # alone on two cores 2 and 6 minutes
def test_all_stages_turn_green_on_this_cpu_and_a_broken_one_is_run_again(
    checkpoint: Path, tmp_path: Path
) -> None:
    asked = ("bringup", "--checkpoint", checkpoint, "--cp", "2", "--backend", "interpret")
    names = ["doctor", "one-op", "all-ops", "one-layer", "ranks-1", "ranks-2", "slice", "real"]
    early = run_here(*asked, "--until", "one-layer", "--out", tmp_path, limit_s=600)
    assert early.returncode == 0, early.stdout
    done = run_here(*asked, "--out", tmp_path, limit_s=900)
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("  green")]
    assert [line[1] for line in lines] == names
    assert ["(before)" in line for line in lines] == [True] * 4 + [False] * 4
    assert "all 8 stages are green, shown on this CPU (bundled interpreter)" in done.stdout
    real = json.loads(
        (tmp_path / "bringup-interpret-cp2" / "08-real.log").read_text().split("\n")[1]
    )
    assert len(real["token_ids"]) == 16
    assert real["counters"]["collectives_per_layer"] > 0


@pytest.mark.slow
@pytest.mark.timeout(2400)  # alone on two cores 2 and 6 minutes
def test_all_stages_turn_green_on_the_stand_in_host(checkpoint: Path, tmp_path: Path) -> None:
    asked = ("bringup", "--checkpoint", checkpoint, "--cp", "1")
    done = run_command(*asked, "--out", tmp_path, limit_s=2000)
    assert done.returncode == 0, done.stdout
    assert "shown on a stand-in (module doubles), which is no device" in done.stdout
    assert "shown on a device" not in done.stdout
    again = run_command(*asked, "--out", tmp_path)
    assert again.stdout.count("(before)") == done.stdout.count("green     ")
