"""Reading a run: what is dropped with a notice, and what is refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import ExitCode, InputError, UsageError, VacuousError
from reports.ledger import read_run
from tests.reports.sample_run import (
    DATA,
    RUN_ID,
    record,
    sample_records,
    stages,
    write_run,
)


def edit_line(path: Path, number: int, change: Any) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    body = json.loads(lines[number - 1])
    change(body)
    lines[number - 1] = json.dumps(body)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_every_record_is_read_with_its_file_and_line(sample_dir: Path) -> None:
    ledger = read_run(sample_dir)
    assert len(ledger.entries) == len(sample_records()) == 92
    assert [entry.source for entry in ledger.of_kind("stage")] == [
        f"stage.jsonl:{line}" for line in range(1, 6)
    ]
    assert ledger.run_id == RUN_ID
    assert ledger.notices == ()


def assert_kept(stored: Any, today: Any, where: str) -> None:
    """Everything stored is still written, with its value; new fields may have come."""
    if isinstance(stored, dict):
        for name, value in stored.items():
            assert name in today, f"{where}.{name}"
            assert_kept(value, today[name], f"{where}.{name}")
    else:
        assert stored == today, where


def test_what_an_earlier_writer_stored_is_what_the_dataclasses_still_mean() -> None:
    stored = {entry.record.key: entry.record for entry in read_run(DATA).entries}
    for item in sample_records():
        today = json.loads(item.to_line())
        assert_kept(json.loads(stored[item.key].to_line()), today, item.key)


def test_anchors_are_unique_and_plain_whatever_keys_hold(sample_dir: Path) -> None:
    anchors = [entry.anchor for entry in read_run(sample_dir).entries]
    assert len(set(anchors)) == len(anchors)
    assert all(anchor.isalnum() for anchor in anchors)


def test_a_torn_last_line_is_dropped_with_a_notice(sample_dir: Path) -> None:
    path = sample_dir / "sweep.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    ledger = read_run(sample_dir)
    assert len(ledger.of_kind("sweep")) == 11
    assert ledger.notices == ("sweep.jsonl: the last line was cut short by a crash and is dropped",)


def test_a_last_line_that_lacks_only_its_newline_counts(sample_dir: Path) -> None:
    path = sample_dir / "sweep.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    ledger = read_run(sample_dir)
    assert len(ledger.of_kind("sweep")) == 12
    assert ledger.notices == ()


def test_the_last_write_of_a_key_counts_and_is_said(tmp_path: Path) -> None:
    first = record("stage", "parity", {**stages()[0], "status": "RUNNING"})
    last = record("stage", "parity", {**stages()[0], "status": "PASS"})
    ledger = read_run(write_run(tmp_path / "run", [first, last]))
    (entry,) = ledger.entries
    assert (entry.payload["status"], entry.line) == ("PASS", 2)
    assert "1 earlier writes of a key are superseded" in ledger.notices[0]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"schema": 1}', '{"schema": 1, "schema": 1}', '{"schema": 99}', '"x"', ""],
)
def test_a_broken_line_before_the_end_names_file_and_line(sample_dir: Path, line: str) -> None:
    path = sample_dir / "parity.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[4] = line
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"parity\.jsonl: line 5") as caught:
        read_run(sample_dir)
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_know_is_refused(sample_dir: Path, number: str) -> None:
    path = sample_dir / "parity.jsonl"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"max_abs": 0.', f'"max_abs": {number}, "x": 0.', 1), "utf-8")
    with pytest.raises(InputError, match=r"parity\.jsonl: line 1"):
        read_run(sample_dir)


def test_bytes_that_are_no_text_are_refused(sample_dir: Path) -> None:
    path = sample_dir / "gate.jsonl"
    path.write_bytes(b"\xff\xfe\n" + path.read_bytes())
    with pytest.raises(InputError, match=r"gate\.jsonl: line 1 .*UTF-8"):
        read_run(sample_dir)


@pytest.mark.parametrize(
    ("kind", "line", "field", "value", "message"),
    [
        ("parity", 2, "status", "FINE", r"payload\.status is 'FINE'"),
        ("tokens", 1, "status", "GREEN", r"payload\.status is 'GREEN'"),
        ("sweep", 1, "status", "ok", r"payload\.status is 'ok'"),
        ("gate", 1, "status", None, r"payload\.status is None"),
        ("parity", 1, "errors", [], "evidence for this status is missing"),
        ("tokens", 1, "positions", [], "evidence for this status is missing"),
        ("sweep", 1, "requests", [], "evidence for this status is missing"),
        ("gate", 1, "baseline", None, "PASS compares two values"),
        ("parity", 1, "errors", [{"name": "y"}], r"errors\[0\]\.num_compared is None"),
        ("tokens", 1, "positions", ["MAYBE"], r"positions\[0\] is 'MAYBE'"),
        ("sweep", 1, "requests", [{"token_ns": [1.5]}], r"requests\[0\]\.token_ns"),
        ("sweep", 1, "requests", [{"token_ns": [1]}], r"requests\[0\]\.t_send_ns"),
        ("stage", 1, "elapsed_s", "4 s", r"payload\.elapsed_s is '4 s'"),
    ],
)
def test_a_payload_that_cannot_be_judged_is_refused(
    sample_dir: Path, kind: str, line: int, field: str, value: object, message: str
) -> None:
    path = sample_dir / f"{kind}.jsonl"
    edit_line(path, line, lambda body: body["payload"].__setitem__(field, value))
    with pytest.raises(InputError, match=rf"{kind}\.jsonl: line {line}, .*{message}"):
        read_run(sample_dir)


def test_a_record_in_the_file_of_another_kind_is_refused(sample_dir: Path) -> None:
    edit_line(sample_dir / "gate.jsonl", 1, lambda body: body.__setitem__("kind", "stage"))
    with pytest.raises(InputError, match=r"gate\.jsonl: line 1, kind is 'stage'"):
        read_run(sample_dir)


def test_unknown_fields_of_a_newer_writer_are_kept(sample_dir: Path) -> None:
    edit_line(sample_dir / "gate.jsonl", 1, lambda body: body.__setitem__("later", [1]))
    entry = read_run(sample_dir).of_kind("gate")[0]
    assert json.loads(entry.record.to_line())["later"] == [1]


def test_no_run_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no directory"):
        read_run(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"neither run\.json nor records"):
        read_run(tmp_path)


def test_a_run_that_recorded_nothing_is_vacuous(tmp_path: Path) -> None:
    ledger = read_run(write_run(tmp_path / "run", []))
    with pytest.raises(VacuousError, match="recorded nothing") as caught:
        ledger.require_records()
    assert caught.value.exit_code is ExitCode.VACUOUS


def test_a_broken_run_file_is_refused_and_a_missing_one_is_said(sample_dir: Path) -> None:
    (sample_dir / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"run\.json: content"):
        read_run(sample_dir)
    (sample_dir / "run.json").unlink()
    assert "run.json is missing" in read_run(sample_dir).notices[0]
