"""Several runs side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import ExitCode, UsageError, VacuousError
from reports.compare import comparison_of, comparison_verdict, read_runs
from reports.document import Document, Table
from reports.html import to_html
from tests.reports.sample_run import DATA, ENVIRONMENT, green_records, sample_records, write_run

_Change = Callable[[dict[str, Any]], None]


def changed_run(directory: Path, kind: str, change: _Change, line: int = 1) -> Path:
    run = write_run(directory, sample_records())
    path = run / f"{kind}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    body = json.loads(lines[line - 1])
    change(body["payload"])
    lines[line - 1] = json.dumps(body)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


def table(document: Document, name: str) -> Table:
    return next(t for section in document.sections for t in section.tables if t.name == name)


def test_a_status_that_changed_is_listed_and_counted(tmp_path: Path) -> None:
    def fail(payload: dict[str, Any]) -> None:
        payload |= {"status": "TIMEOUT", "message": "slow"}

    runs = read_runs([DATA, changed_run(tmp_path / "b", "parity", fail, line=3)])
    document = comparison_of(runs)
    (row,) = table(document, "changed-parity").rows
    assert [cell.text for cell in row.cells] == [
        "rms_norm/T4-d512/bfloat16/ties/s2", "PASS", "TIMEOUT",
    ]  # fmt: skip
    assert "1 of kernel parity" in document.sentence
    assert table(document, "changed-tokens").rows == ()
    assert comparison_verdict(runs) is ExitCode.RANK


def test_times_are_ratios_to_the_first_run(tmp_path: Path) -> None:
    def slow_down(payload: dict[str, Any]) -> None:
        for request in payload["requests"]:
            send = request["t_send_ns"]
            request["token_ns"] = [send + 2 * (stamp - send) for stamp in request["token_ns"]]

    document = comparison_of(read_runs([DATA, changed_run(tmp_path / "b", "sweep", slow_down)]))
    first, second = table(document, "latency").rows[:2]
    assert [cell.text for cell in first.cells][:2] == ["input=64 cp=1", "TTFT"]
    assert first.cells[2].text == "71.3"
    assert first.cells[3].text == "143 ×2.00+"
    assert second.cells[3].text.endswith("×2.00+")
    unchanged = table(document, "latency").rows[2]
    assert unchanged.cells[3].text.endswith("×1.00")


def test_what_a_run_lacks_is_missing_not_equal(tmp_path: Path) -> None:
    fewer = write_run(tmp_path / "b", sample_records()[:-20])
    document = comparison_of(read_runs([DATA, fewer]))
    texts = [cell.text for row in table(document, "changed-gate").rows for cell in row.cells]
    assert texts.count("missing") == len(table(document, "changed-gate").rows) > 0


def test_three_runs_have_three_columns_and_failed_cells_stay(tmp_path: Path) -> None:
    runs = read_runs([DATA, *(write_run(tmp_path / n, sample_records()) for n in ("b", "c"))])
    document = comparison_of(runs)
    latency = table(document, "latency")
    assert len(latency.columns) == 5
    texts = {cell.text for row in latency.rows for cell in row.cells}
    assert {"failed", "crashed", "pruned"} <= texts


def test_other_environments_are_said_in_the_first_sentence(tmp_path: Path) -> None:
    other = {**ENVIRONMENT, "cpu_model": "Other <CPU>", "git": "f00"}
    document = comparison_of(read_runs([DATA, write_run(tmp_path / "b", green_records(), other)]))
    assert "differ in cpu_model: times are not comparable" in document.sentence
    rows = {row.cells[0].text: row.cells[2].text for row in table(document, "environments").rows}
    assert rows == {"cpu_model": "Other <CPU>", "git": "f00"}
    assert "Other <CPU>" not in to_html(document)


def test_a_page_of_a_comparison_has_no_link_to_nowhere(tmp_path: Path) -> None:
    text = to_html(comparison_of(read_runs([DATA, write_run(tmp_path / "b", green_records())])))
    assert 'href="#r' not in text.replace('href="#runs"', "")
    assert 'href="#"' not in text


def test_a_run_cannot_be_compared_with_itself_or_with_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="named twice"):
        read_runs([DATA, DATA / ".." / DATA.name])
    with pytest.raises(VacuousError):
        read_runs([DATA, write_run(tmp_path / "empty", [])])
