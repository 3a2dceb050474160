"""`neuron-harness gate` end to end on records of real runs."""

from __future__ import annotations

import json

import pytest

from harness.cli.gate import shipped_baseline
from harness.cli.parity import select_cases
from harness.core.errors import MissingEvidenceError
from harness.core.metric import MetricKind
from harness.run.gate_sides import read_side
from harness.run.store import read_ledger
from suites.loader import load_sweep_suite, load_token_suite


@pytest.fixture
def run_of(command, checkpoint, token_suite, tmp_path):
    """Make one more run of the small token suite; returns its directory."""

    def make():
        out = tmp_path / "runs"
        before = set(out.iterdir()) if out.exists() else set()
        code = command("tokens", "--suite", token_suite, "--checkpoint", checkpoint, "--out", out)
        assert code == 0
        (made,) = set(out.iterdir()) - before
        return made

    return make


def edit_metric(run, name, value):
    """Change one metric of a baseline by hand."""
    path = run / "metric.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["key"] == name:
            line["payload"]["values"] = [value]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def verdicts_of(run):
    return {one.key: one.payload["status"] for one in read_ledger(run / "gate.jsonl").records}


def test_baseline_written_then_gated_against(command, run_of, gate_spec, tmp_path, capsys):
    first, baseline = run_of(), tmp_path / "baseline"
    assert command("gate", first, "--write-baseline", baseline) == 0
    assert "deterministic metrics" in capsys.readouterr().out
    again = tmp_path / "again"
    assert command("gate", first, "--write-baseline", again) == 0
    assert (again / "metric.jsonl").read_bytes() == (baseline / "metric.jsonl").read_bytes()
    assert "_ms" not in (baseline / "metric.jsonl").read_text()

    second = run_of()
    assert command("gate", second, "--baseline", baseline, "--spec", gate_spec) == 0
    statuses = verdicts_of(second)
    assert statuses["tokens.chunks.short.status"] == "PASS"
    # Nobody swept: the primary timing is missing, for information only.
    assert statuses["sweep.fast.cp=1.in=4.out=3.ttft_ms"] == "MISSING"

    edit_metric(baseline, "tokens.chunks.short.launches", 1.0)
    assert command("gate", second, "--baseline", baseline, "--spec", gate_spec) == 1
    assert "REGRESSED" in capsys.readouterr().out
    assert verdicts_of(second)["tokens.chunks.short.launches"] == "REGRESSED"


def test_a_run_against_itself_is_invalid(command, run_of, gate_spec, capsys):
    run = run_of()
    assert command("gate", run, "--baseline", run, "--spec", gate_spec) == 4
    assert "INVALID" in capsys.readouterr().out


def test_a_missing_baseline_cannot_be_judged(command, run_of, gate_spec, tmp_path, capsys):
    run = run_of()
    code = command("gate", run, "--baseline", tmp_path / "no", "--spec", gate_spec)
    assert code == 3
    assert "no such directory" in capsys.readouterr().out


def test_a_directory_of_runs_without_metrics_cannot_be_judged(command, gate_spec, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    code = command("gate", tmp_path / "empty", "--baseline", tmp_path, "--spec", gate_spec)
    assert code == 3
    assert "holds no metric.jsonl" in capsys.readouterr().err


@pytest.mark.slow
def test_selftest_prints_its_rates_and_passes(command, capsys):
    assert command("gate", "selftest") == 0
    printed = capsys.readouterr().out
    assert "false alarms" in printed
    assert "detected" in printed


def test_the_shipped_baseline_covers_the_suites_of_its_preset():
    shipped = shipped_baseline("tiny")
    (run,) = read_side(shipped)
    assert all(metric.kind is MetricKind.DETERMINISTIC for metric in run.metrics.values())
    tokens, sweep = load_token_suite("tiny"), load_sweep_suite("tiny")
    for pair in tokens.pairs:
        for prompt in tokens.prompts:
            assert run.metrics[f"tokens.{pair.name}.{prompt.name}.status"].values == ("MATCH",)
    for cp in sweep.cps:
        for length in sweep.input_lens:
            path = f"sweep.fast.cp={cp}.in={length}.out={sweep.output_len}"
            assert run.metrics[f"{path}.status"].values == ("OK",)
            assert run.metrics[f"{path}.collectives_per_layer"].values == (2.0 if cp > 1 else 0.0,)
    for case in select_cases([], [], "tiny", "").cases:
        assert run.metrics[f"parity.{case.case_id}.status"].values == ("PASS",)
        assert f"parity.{case.case_id}.instructions" in run.metrics


def test_a_preset_without_a_shipped_baseline_cannot_be_judged():
    with pytest.raises(MissingEvidenceError, match="no baseline ships for 'port'"):
        shipped_baseline("port")


@pytest.mark.parametrize("extra", [(), ("--baseline", "/nonexistent")])
def test_a_run_that_is_not_there_is_the_users_mistake(command, tmp_path, capsys, extra):
    assert command("gate", tmp_path / "none", *extra) == 2
    assert "there is no such run" in capsys.readouterr().err


def test_a_baseline_that_is_not_there_is_missing_evidence(command, tmp_path, capsys):
    assert command("gate", tmp_path, "--baseline", tmp_path / "none") == 3
    assert "there is no such directory" in capsys.readouterr().err
