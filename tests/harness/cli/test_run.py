"""`neuron-harness run`: every stage runs, is timed and recorded; the worst ending decides."""

from __future__ import annotations

import pytest

import harness.cli.run as run_module
from harness.core.errors import ExitCode, MissingEvidenceError, UsageError
from harness.core.metric import Direction, Metric, MetricKind
from harness.run.clock import ManualClock
from harness.run.store import new_run, read_ledger

STAGES = ["checkpoint", "parity", "tokens", "sweep", "gate", "report"]


@pytest.fixture
def baseline(tmp_path):
    """A baseline of one metric that the stubbed parity stage also gives."""
    with new_run(
        tmp_path,
        command=["test"],
        environment={"origin": "cpu-interpreter"},
        run_id="baseline",
        clock=ManualClock(),
    ) as store:
        store.append("metric", "parity.case.status", _status("PASS"))
        return store.directory


def _status(value):
    return Metric(
        "parity.case.status", (value,), "status", Direction.EQUAL, MetricKind.DETERMINISTIC
    )


@pytest.fixture
def stubbed(monkeypatch, checkpoint, baseline, tmp_path, command):
    """`run` with stages of our own; returns (exit code, run directory)."""

    def run(**stages):
        def parity(store, screen, preset, backend):
            store.append("parity", "case", _parity_payload())
            return ExitCode.PASS

        monkeypatch.setattr(run_module, "check_parity", stages.get("parity", parity))
        monkeypatch.setattr(
            run_module, "match_tokens", stages.get("tokens", lambda *_: ExitCode.PASS)
        )
        monkeypatch.setattr(
            run_module, "measure_sweep", stages.get("sweep", lambda *_: ExitCode.PASS)
        )
        out = tmp_path / "runs"
        code = command(
            *("run", "--preset", "tiny", "--checkpoint", checkpoint),
            *("--baseline", baseline, "--out", out),
        )
        (directory,) = out.iterdir()
        return code, directory

    return run


def _parity_payload():
    from harness.core.results import OutputErrors, ParityResult
    from harness.core.status import OpStatus

    errors = OutputErrors(
        "y", 4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, (0,), (0, 0), 1.0, 1.0, 1.0, {"0": 4}, None
    )
    return ParityResult("case", "rms_norm", "interpret", OpStatus.PASS, errors=(errors,))


def _stages(directory):
    return {one.key: one.payload for one in read_ledger(directory / "stage.jsonl").records}


def test_every_stage_runs_and_the_report_is_written(stubbed, capsys):
    code, directory = stubbed()
    assert code == 0
    stages = _stages(directory)
    assert list(stages) == STAGES
    assert {stage["status"] for stage in stages.values()} == {"PASS"}
    assert all(stage["elapsed_s"] >= 0 for stage in stages.values())
    assert (directory / "report.md").exists()
    assert (directory / "report.html").exists()
    (verdict,) = [
        one.payload
        for one in read_ledger(directory / "gate.jsonl").records
        if one.key == "parity.case.status"
    ]
    assert verdict["status"] == "PASS"
    printed = capsys.readouterr().out
    assert "parity: PASS in" in printed
    assert str(directory) in printed


def test_the_worst_stage_decides_and_the_later_ones_still_run(stubbed):
    code, directory = stubbed(tokens=lambda *_: ExitCode.RANK, sweep=lambda *_: ExitCode.MISMATCH)
    assert code == ExitCode.RANK
    stages = _stages(directory)
    assert list(stages) == STAGES
    assert stages["tokens"]["exit_code"] == 5
    assert stages["sweep"]["status"] == "MISMATCH"


def test_missing_evidence_of_a_stage_is_its_exit_code(stubbed, capsys):
    def parity(*_):
        raise MissingEvidenceError("backend 'device': no NeuronCore here")

    code, directory = stubbed(parity=parity)
    assert code == ExitCode.CANNOT_JUDGE
    stages = _stages(directory)
    assert list(stages) == STAGES
    assert stages["parity"]["status"] == "CANNOT_JUDGE"
    # Nothing was recorded, so the gate has nothing to judge either.
    assert stages["gate"]["status"] == "CANNOT_JUDGE"
    assert "no NeuronCore here" in capsys.readouterr().out


def test_wrong_usage_ends_the_run_at_once(stubbed, capsys):
    def tokens(*_):
        raise UsageError("prompt of 500 tokens")

    code, directory = stubbed(tokens=tokens)
    assert code == ExitCode.USAGE
    assert list(_stages(directory)) == ["checkpoint", "parity", "tokens"]
    assert "prompt of 500 tokens" in capsys.readouterr().err


def test_an_interruption_is_recorded_and_ends_with_130(stubbed, capsys):
    def sweep(*_):
        raise KeyboardInterrupt

    code, directory = stubbed(sweep=sweep)
    assert code == ExitCode.INTERRUPTED
    assert _stages(directory)["sweep"]["status"] == "INTERRUPTED"
    assert f"finished work is kept in {directory}" in capsys.readouterr().err


def test_a_bug_of_ours_is_recorded_and_leaves_a_traceback(stubbed, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def sweep(*_):
        raise ZeroDivisionError("ours")

    code, directory = stubbed(sweep=sweep)
    assert code == ExitCode.INTERNAL
    assert _stages(directory)["sweep"]["message"] == "ZeroDivisionError('ours')"
    assert "ZeroDivisionError('ours')" in capsys.readouterr().err
    (trace,) = tmp_path.glob("neuron-harness-*.traceback.txt")
    assert "raise ZeroDivisionError" in trace.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--preset", "tyni"], "'tyni' is not known"),
        (["--backend", "divice"], "divice"),
        (["--checkpoint", "nowhere"], "no such directory"),
    ],
)
def test_a_wrong_request_ends_with_2(command, baseline, tmp_path, capsys, options, said):
    code = command("run", "--baseline", baseline, "--out", tmp_path / "runs", *options)
    assert code == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_tiny_preset_passes_against_the_shipped_baseline(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("run", "--preset", "tiny") == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert list(_stages(directory)) == STAGES
    tokens = read_ledger(directory / "tokens.jsonl").records
    assert {one.payload["status"] for one in tokens} <= {"MATCH", "NEAR_TIE"}
    assert len(tokens) >= 10
