"""`neuron-harness ab` and what a gate writes for programs, CI systems and GitHub."""

import json
import xml.etree.ElementTree as ET

import pytest

from harness.cli.gate_outputs import write_gate_outputs
from harness.cli.session import console
from harness.core.errors import UsageError
from harness.core.metric import GateVerdict
from harness.core.status import GateStatus

ONE_POINT = "--input-len 4 --output-len 2 --repeats 1"
VERDICTS = (
    GateVerdict("a.status", GateStatus.PASS, "unchanged", "status", "OK", "OK"),
    GateVerdict("b <&> ms", GateStatus.REGRESSED, "+12 % | worse", "ms", 1.0, 1.12, 0.12),
    GateVerdict("c", GateStatus.INCONCLUSIVE, "3 pairs of runs, 10 needed"),
)


def test_one_gate_is_written_for_three_readers(tmp_path, monkeypatch):
    summary = tmp_path / "step_summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    out = tmp_path / "verdict"
    write_gate_outputs(console(), out, VERDICTS)
    body = json.loads((out / "gate.json").read_text())
    assert body["exit_code"] == 1
    assert [one["status"] for one in body["verdicts"]] == ["PASS", "REGRESSED", "INCONCLUSIVE"]
    root = ET.fromstring((out / "junit.xml").read_text())
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    assert "b <&> ms" in {case.get("name") for case in root.iter("testcase")}
    assert summary.read_text() == (out / "summary.md").read_text()
    assert "REGRESSED" in summary.read_text()
    assert "<&>" not in summary.read_text()


def test_outputs_never_overwrite_another_run(tmp_path):
    write_gate_outputs(console(), tmp_path / "verdict", VERDICTS)
    with pytest.raises(UsageError, match="this run exists"):
        write_gate_outputs(console(), tmp_path / "verdict", VERDICTS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "both sides are the same"),
        (("--candidate", "--cp 2", "--pairs", 1), "a pair of runs says nothing alone"),
        (("--candidate", "--cp 2", "--candidate-checkout", "/nowhere"), "no checkout"),
    ],
)
def test_what_cannot_be_compared_is_refused(command, tmp_path, capsys, arguments, said):
    assert command("ab", *arguments, "--out", tmp_path) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_side_that_cannot_run_is_quoted(command, checkpoint, tmp_path, capsys):
    code = command(
        *("ab", "--baseline", "--cp three", "--candidate", "--cp 2", "--pairs", 2),
        *("--checkpoint", checkpoint, "--out", tmp_path),
    )
    assert code == 2
    assert "'three' is no whole number" in capsys.readouterr().err


@pytest.mark.slow
def test_two_settings_in_turns_end_in_a_paired_verdict(command, checkpoint, tmp_path, capsys):
    """Forty times the prompt is slower beyond doubt; two pairs would not be enough to say so."""
    code = command(
        *("ab", "--baseline", ONE_POINT, "--candidate", f"{ONE_POINT} --cp 2 --spec tiny"),
        *("--checkpoint", checkpoint, "--out", tmp_path, "--pairs", 10),
    )
    (root,) = tmp_path.iterdir()
    body = json.loads((root / "verdict" / "gate.json").read_text())
    assert body["exit_code"] == code
    timings = {one["metric"]: one for one in body["verdicts"] if one["metric"].endswith("_ms")}
    assert timings["sweep.in=4.out=2.ttft_ms"]["num_pairs"] == 10
    assert len(list((root / "baseline").iterdir())) == 10
