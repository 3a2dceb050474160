"""`neuron-harness records`: lists runs, lists, filters and exports records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.errors import ExitCode
from harness.core.record import SCHEMA_VERSION
from tests.reports.sample_names import MARKUP
from tests.reports.sample_run import DATA, green_records, write_run


def run(*arguments: object) -> int:
    """Exit code; 0 where the command just returned."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_run_lists_its_records_with_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("records", DATA, "--kind", "tokens") == ExitCode.PASS
    out = capsys.readouterr().out
    assert out.rstrip().endswith("9 records")
    assert "tokens.jsonl:7" in out
    assert MARKUP in out


def test_filters_narrow_and_jsonl_keeps_records_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run("records", DATA, "--where", "op=rms_norm", "--status", "PASS", "--format", "jsonl")
    assert code == ExitCode.PASS
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    stored = (DATA / "parity.jsonl").read_text(encoding="utf-8").splitlines()
    # The stored sample is of schema 1; the export says it is upgraded, and changes nothing else.
    kept = [json.loads(line) | {"schema": SCHEMA_VERSION} for line in stored]
    assert all(json.loads(line) in kept for line in lines)
    assert {json.loads(line)["payload"]["op"] for line in lines} == {"rms_norm"}


def test_csv_goes_to_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("records", DATA, "--kind", "sweep", "--format", "csv")
    assert run(*arguments) == ExitCode.USAGE
    assert "name --out DIR" in capsys.readouterr().err
    assert run(*arguments, "--out", tmp_path / "csv") == ExitCode.PASS
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == [
        "bench.csv",
        "sweep.csv",
    ]


def test_a_directory_of_runs_lists_them_with_their_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "good", green_records())
    write_run(tmp_path / "nothing", [])
    assert run("records", tmp_path) == ExitCode.PASS
    out = capsys.readouterr().out
    assert [word for word in ("good", "PASS", "nothing", "VACUOUS") if word in out] == [
        "good", "PASS", "nothing", "VACUOUS",
    ]  # fmt: skip
    assert run("records", tmp_path, "--status", "PASS") == ExitCode.USAGE


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--kind", "token"], ExitCode.USAGE, "did you mean tokens"),
        (["--where", "op"], ExitCode.USAGE, "must read COLUMN=TEXT"),
        (["--format", "xml"], ExitCode.USAGE, "is not known"),
        (["--key", "no such*"], ExitCode.VACUOUS, "none of 92 records fits"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], code: ExitCode, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("records", DATA, *arguments) == code
    assert message in capsys.readouterr().err
