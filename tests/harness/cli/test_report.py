"""`neuron-harness report`: exit codes, formats, and errors in one line."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from harness.core.errors import ExitCode
from tests.harness.cli.command_line import run
from tests.reports.sample_run import DATA, green_records, write_run


@pytest.fixture(autouse=True)
def outside_a_github_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_a_green_run_ends_with_zero_and_names_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run(tmp_path / "run", green_records())
    assert run("report", directory) == ExitCode.PASS
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == [str(directory / "report.md"), str(directory / "report.html")]
    assert out[2].startswith("PASS: 8 of 8 cases passed")


def test_a_red_run_is_rendered_and_ends_with_its_verdict(tmp_path: Path) -> None:
    formats = "junit,csv,summary"
    assert run("report", DATA, "--out", tmp_path, "--format", formats) == ExitCode.RANK
    assert ET.parse(tmp_path / "junit.xml").getroot().get("tests") == "91"
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("## RANK LOST")
    kinds = {"bench", "gate", "metric", "parity", "stage", "sweep", "tokens"}
    assert {path.stem for path in (tmp_path / "csv").iterdir()} == kinds
    assert not (tmp_path / "report.html").exists()


def test_an_empty_run_is_vacuous(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", write_run(tmp_path / "run", [])) == ExitCode.VACUOUS
    assert "recorded nothing" in capsys.readouterr().err


def test_a_half_written_last_line_is_dropped_with_a_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run(tmp_path / "run", green_records())
    with (directory / "parity.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"schema": 1, "kind": "par')
    run("report", directory)
    notices = [line for line in capsys.readouterr().out.splitlines() if "notice: " in line]
    assert len(notices) == 1
    assert "parity.jsonl" in notices[0]


def test_a_corrupted_record_names_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run(tmp_path / "run", green_records())
    path = directory / "sweep.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], lines[1][:50], *lines[2:]]) + "\n", encoding="utf-8")
    assert run("report", directory) == ExitCode.USAGE
    assert "sweep.jsonl: line 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "htm"], "did you mean html?"),
        (["--format", ","], "--format is empty"),
    ],
)
def test_wrong_formats_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("report", DATA, *arguments) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_several_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_run(tmp_path / "other", green_records())
    assert run("report", DATA, other, "--out", tmp_path / "both") == ExitCode.RANK
    assert "Statuses that differ" in capsys.readouterr().out
    assert (tmp_path / "both" / "report.html").is_file()
    assert run("report", DATA, other) == ExitCode.USAGE
    assert "name --out DIR" in capsys.readouterr().err
    assert run("report", DATA, other, "--out", tmp_path, "--format", "junit") == ExitCode.USAGE


def test_a_github_job_gets_its_summary_and_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "step.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run("report", DATA, "--out", tmp_path, "--format", "summary")
    assert summary.read_text(encoding="utf-8").startswith("before\n## RANK LOST")
    assert capsys.readouterr().out.startswith("::error title=HANG tokens")
