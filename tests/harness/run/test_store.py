"""The ledger keeps what it confirmed, drops only what a crash cut, and refuses early."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import ExitCode, InputError, UsageError
from harness.run.clock import ManualClock
from harness.run.store import Ledger, RunStore, new_run, open_run, read_ledger, read_run

ENVIRONMENT = {"python": "3.11.0", "torch": "2.13.0"}


def _run(root: Path, run_id: str = "r1") -> RunStore:
    return new_run(
        root,
        command=["neuron-harness", "parity"],
        environment=ENVIRONMENT,
        run_id=run_id,
        clock=ManualClock(),
    )


def test_a_record_is_on_disk_before_append_returns(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        run.append("parity", "a", {"status": "PASS"})
        content = read_ledger(tmp_path / "r1" / "parity.jsonl")  # still open for writing
    assert [(record.key, record.payload) for record in content.records] == [
        ("a", {"status": "PASS"})
    ]
    assert content.records[0].environment == ENVIRONMENT
    assert content.records[0].created == "2026-01-01T00:00:00.000+00:00"


def test_derived_results_are_recorded_together_and_in_order(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        run.append("gate", "a", {"status": "PASS"})
        run.append_all("gate", {"b": {"status": "NEW"}, "a": {"status": "MISSING"}})
    records = read_ledger(tmp_path / "r1" / "gate.jsonl").records
    assert [(record.key, record.payload["status"]) for record in records] == [
        ("a", "MISSING"),
        ("b", "NEW"),
    ]


def test_run_json_keeps_command_start_and_environment(tmp_path: Path) -> None:
    _run(tmp_path).close()
    assert read_run(tmp_path / "r1") == {
        "run_id": "r1",
        "command": ["neuron-harness", "parity"],
        "start": "2026-01-01T00:00:00+00:00",
        "environment": ENVIRONMENT,
    }


def test_the_last_record_of_a_key_wins_in_the_place_of_the_first(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        for key, value in (("a", 1), ("b", 2), ("a", 3)):
            run.append("sweep", key, {"value": value})
        content = run.read("sweep")
    assert [(record.key, record.payload["value"]) for record in content.records] == [
        ("a", 3),
        ("b", 2),
    ]
    assert content.num_superseded == 1


@pytest.mark.parametrize("kept_bytes", [1, 20, 150])
def test_a_torn_last_line_is_dropped_with_a_notice_and_cut_before_the_next_append(
    tmp_path: Path, kept_bytes: int
) -> None:
    with _run(tmp_path) as run:
        run.append("parity", "a", {"value": 1})
        run.append("parity", "b", {"value": 2})
    path = tmp_path / "r1" / "parity.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:kept_bytes])
    content = read_ledger(path)
    assert list(content.by_key()) == ["a"]
    assert content.notices == (f"{path}: the last line was cut short by a crash and is dropped",)
    with open_run(tmp_path / "r1", environment=ENVIRONMENT) as run:
        run.append("parity", "c", {"value": 3})
    assert list(read_ledger(path).by_key()) == ["a", "c"]
    assert read_ledger(path).notices == ()


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        run.append("parity", "a", {"value": 1})
    path = tmp_path / "r1" / "parity.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert list(read_ledger(path).by_key()) == ["a"]
    with open_run(tmp_path / "r1", environment=ENVIRONMENT) as run:
        run.append("parity", "b", {"value": 2})
    assert list(read_ledger(path).by_key()) == ["a", "b"]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        run.append("parity", "a", {"value": 1})
    path = tmp_path / "r1" / "parity.jsonl"
    path.write_bytes(b'{"kind": \n' + path.read_bytes())
    with pytest.raises(InputError, match=r"parity.jsonl: line 1 is"):
        read_ledger(path)


def test_bytes_that_are_no_text_are_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="line 1"):
        read_ledger(path)


def test_a_missing_ledger_is_empty(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "none.jsonl").records == ()


def test_an_output_directory_below_a_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="choose a writable directory with --out") as caught:
        _run(tmp_path / "file" / "runs")
    assert caught.value.exit_code is ExitCode.USAGE


def test_an_output_directory_the_system_refuses_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        _run(Path("/proc/neuron-harness-runs"))  # refused even to root


def test_a_run_is_not_begun_twice(tmp_path: Path) -> None:
    _run(tmp_path).close()
    with pytest.raises(UsageError, match="this run exists"):
        _run(tmp_path)


def test_two_writers_of_one_ledger_are_refused(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "parity.jsonl")
    with pytest.raises(UsageError, match="another process is writing"):
        Ledger(tmp_path / "parity.jsonl")
    first.close()
    Ledger(tmp_path / "parity.jsonl").close()


def test_a_number_that_json_does_not_know_never_reaches_the_ledger(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        with pytest.raises(ValueError):
            run.append("parity", "a", {"value": float("nan")})
        assert run.read("parity").records == ()


def test_opening_a_directory_without_a_run_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name a directory that a run has written"):
        open_run(tmp_path, environment=ENVIRONMENT)


def test_generated_run_ids_sort_by_time(tmp_path: Path) -> None:
    clock = ManualClock()
    first = new_run(tmp_path, command=[], environment={}, clock=clock)
    clock.advance_ms(1000)
    second = new_run(tmp_path, command=[], environment={}, clock=clock)
    assert first.run_id < second.run_id
    assert first.run_id.startswith("20260101-000000-")
