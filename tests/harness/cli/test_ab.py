"""`neuron-harness ab` and what a gate writes for programs, CI systems and GitHub."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from harness.cli import ab
from harness.cli.gate_outputs import write_gate_outputs
from harness.cli.session import console
from harness.core.errors import UsageError
from harness.core.metric import Direction, GateVerdict, Metric, MetricKind
from harness.core.status import GateStatus
from harness.run.store import new_run

ONE_POINT = "--input-len 4 --output-len 2 --repeats 1 --cp 1"
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


def test_sides_that_cannot_be_compared_end_after_the_first_pair(
    command, tmp_path, checkpoint, capsys, monkeypatch
):
    ran = []

    def fake(checkout, options, checkpoint, out):
        ran.append(out.name)
        settings = ("fast.cp=1", "fast.cp=2") if out.name == "baseline" else ("fast.cp=2",)
        with new_run(out, command=["sweep"], environment={"origin": "x"}) as store:
            for setting in settings:
                name = f"sweep.{setting}.in=4.out=2.ttft_ms"
                metric = Metric(name, (1.0,), "ms", Direction.LOWER, MetricKind.TIMING)
                store.append("metric", name, metric)

    monkeypatch.setattr(ab, "run_side", fake)
    asked = ("ab", "--candidate", "--cp 2", "--pairs", 10, "--checkpoint", checkpoint)
    assert command(*asked, "--out", tmp_path) == 2
    assert "compare one setting with one other" in capsys.readouterr().err
    assert ran == ["baseline", "candidate"]


@pytest.mark.slow
@pytest.mark.timeout(2400)  # twenty processes with an engine each
def test_two_settings_in_turns_end_in_a_paired_verdict(command, checkpoint, tmp_path, capsys):
    code = command(
        *("ab", "--baseline", ONE_POINT, "--candidate", ONE_POINT.replace("--cp 1", "--cp 2")),
        *("--checkpoint", checkpoint, "--out", tmp_path, "--pairs", 10),
    )
    (root,) = tmp_path.iterdir()
    body = json.loads((root / "verdict" / "gate.json").read_text())
    assert body["exit_code"] == code
    timings = {one["metric"]: one for one in body["verdicts"] if one["metric"].endswith("_ms")}
    assert timings["sweep.in=4.out=2.ttft_ms"]["num_pairs"] == 10
    assert len(list((root / "baseline").iterdir())) == 10


def _checkout(target: Path, *, delay_s: float = 0.0) -> Path:
    """A checkout of what is here; every step of its engine takes so much longer."""
    root = Path(__file__).parents[3]
    for name in _PACKAGES:
        shutil.copytree(root / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    if delay_s:
        llm = target / "engine" / "llm.py"
        text = llm.read_text()
        line = "        plans = self._batches.next_plans()\n"
        assert text.count(line) == 1
        llm.write_text(text.replace(line, f"        time.sleep({delay_s})\n{line}"))
    return target


def _timings(root: Path) -> dict[str, dict[str, object]]:
    body = json.loads((root / "verdict" / "gate.json").read_text())
    return {one["metric"]: one for one in body["verdicts"] if one["metric"].endswith("_ms")}


def _compared(command, checkpoint: Path, place: Path, delay_s: float) -> tuple[int, Path]:
    """Exit code and directory of ten pairs of a checkout and a copy of it that is slower."""
    base = _checkout(place / "base")
    other = _checkout(place / "other", delay_s=delay_s)
    code = command(
        *("ab", "--baseline", ONE_POINT, "--candidate", ONE_POINT, "--pairs", 10),
        *("--baseline-checkout", base, "--candidate-checkout", other),
        *("--checkpoint", checkpoint, "--out", place / "runs"),
    )
    (root,) = (place / "runs").iterdir()
    return code, root


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_checkout_that_became_slower_regresses(command, checkpoint, tmp_path):
    code, root = _compared(command, checkpoint, tmp_path, 0.3)
    found = _timings(root)
    assert code == 1
    assert {one["status"] for one in found.values()} == {"REGRESSED"}
    for one in found.values():
        assert one["candidate"] > one["baseline"] + 150
        assert one["num_pairs"] == 10
    # The record of each side names the checkout it came from: neither is a git checkout.
    sides = [path for side in ("baseline", "candidate") for path in (root / side).iterdir()]
    assert len(sides) == 20
    assert {json.loads((p / "run.json").read_text())["environment"]["git"] for p in sides} == {None}


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_an_equal_checkout_does_not_regress(command, checkpoint, tmp_path):
    code, root = _compared(command, checkpoint, tmp_path, 0.0)
    assert code in (0, 3)
    assert {one["status"] for one in _timings(root).values()} <= {
        "PASS",
        "INCONCLUSIVE",
        "IMPROVED",
    }


_PACKAGES = (
    *("engine", "harness", "kernels", "references", "reports", "suites", "tiny_checkpoints"),
)
