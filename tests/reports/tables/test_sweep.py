"""The matrix: failed and pruned cells stay visible, published rows are labelled."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from harness.core.results import PointStatus, SweepPoint
from reports.document import ABSENT
from reports.ledger import Ledger, read_run
from reports.published import PUBLISHED, PUBLISHED_LABEL
from reports.tables.sweep import beside_published_table, point_table
from tests.reports.sample_run import record, write_run
from tests.reports.sample_sweep import requests_of, sweep_config

RNG = random.Random(0)


def test_failed_crashed_and_pruned_cells_are_shown_with_reasons(sample: Ledger) -> None:
    table = point_table(sample)
    titles = [column.title for column in table.columns]
    status, reason, ttft = (titles.index(name) for name in ("status", "reason", "TTFT ms"))
    missing = {
        row.cells[status].text: (row.cells[reason].text, row.cells[ttft].text)
        for row in table.rows
        if row.cells[status].text != "OK"
    }
    assert missing["PRUNED"] == ("input 512 + output 16 = 528, over 520", "–")
    assert missing["CRASHED"] == ("rank 2 died with signal 9", "–")
    assert missing["FAILED"][0].startswith("finish reason 'stop' after 3 tokens")
    assert len(table.rows) == 12


def test_what_all_points_share_is_in_the_note_not_in_columns(sample: Ledger) -> None:
    table = point_table(sample)
    assert [column.title for column in table.columns][:3] == ["input", "cp", "shown on"]
    assert "output 16, ep 1" not in table.note
    assert "numerics fast" in table.note


def test_published_figures_are_those_of_the_port_and_labelled(sample: Ledger) -> None:
    rows = [
        tuple(cell.text for cell in row.cells)
        for row in beside_published_table(sample).rows
        if row.cells[2].text == PUBLISHED_LABEL
    ]
    thin = "\u202f"
    assert rows == [
        ("512", "DeepInfer", PUBLISHED_LABEL, f"5{thin}000", "447"),
        ("512", "vllm-neuron", PUBLISHED_LABEL, "830", "117–127"),
        ("1024", "DeepInfer", PUBLISHED_LABEL, f"9{thin}000", "447"),
        ("1024", "vllm-neuron", PUBLISHED_LABEL, f"1{thin}370", "–"),
        ("2048", "DeepInfer", PUBLISHED_LABEL, f"17{thin}100", "456"),
        ("2048", "vllm-neuron", PUBLISHED_LABEL, f"2{thin}540", "–"),
        ("8192", "DeepInfer", PUBLISHED_LABEL, f"66{thin}500", "471"),
        ("8192", "vllm-neuron", PUBLISHED_LABEL, f"12{thin}200", "–"),
    ]
    assert len(PUBLISHED) == 8


def test_measured_rows_say_where_they_were_measured(sample: Ledger) -> None:
    table = beside_published_table(sample)
    measured = [row for row in table.rows if row.cells[2].text != PUBLISHED_LABEL]
    assert len(measured) == 9
    assert {row.cells[2].text for row in measured} == {"measured here on CPU"}
    assert table.note.startswith("Not comparable hardware.")


def shown_with(tmp_path: Path, **more: Any) -> dict[str, str]:
    requests = [{**one, "client_cpu_share": 0.04} for one in requests_of(RNG, 2, 64, 10.0, 5.0)]
    config = sweep_config(64, 1)
    point = SweepPoint("k", config, PointStatus.OK, "", tuple(requests), **more)
    table = point_table(read_run(write_run(tmp_path / "run", [record("sweep", "k", point)])))
    titles = [column.title for column in table.columns]
    return dict(zip(titles, (cell.text for cell in table.rows[0].cells), strict=True))


def test_doubts_about_a_measurement_and_the_clients_own_work_are_shown(tmp_path: Path) -> None:
    facts = {
        "other_work_share": 0.37,
        "is_contaminated": 1.0,
        "first_repeat_ratio": 2.5,
        "first_repeat_differs": 1.0,
    }
    row = shown_with(tmp_path, facts=facts, compile_events=3)
    assert row["doubts"] == (
        "others used 37% of this machine's cores; the first repeat took 2.50 × the others"
    )
    assert row["client CPU"] == "4%"
    assert row["compiles"] == "3"


def test_a_quiet_measurement_has_no_doubts_and_an_untold_count_is_a_dash(tmp_path: Path) -> None:
    facts = {"other_work_share": 0.01, "is_contaminated": 0.0, "first_repeat_differs": 0.0}
    row = shown_with(tmp_path, facts=facts)
    assert (row["doubts"], row["compiles"]) == (ABSENT, ABSENT)


def test_prefill_paths_are_told_apart_where_there_are_both(tmp_path: Path) -> None:
    records = []
    for prefill in ("", "attention"):
        config = {**sweep_config(64, 1), **({"prefill": prefill} if prefill else {})}
        point = SweepPoint(prefill, config, PointStatus.OK, "", requests_of(RNG, 2, 64, 10.0, 5.0))
        records.append(record("sweep", prefill or "plain", point))
    table = point_table(read_run(write_run(tmp_path / "run", records)))
    path = [column.title for column in table.columns].index("prefill")
    assert [row.cells[path].text for row in table.rows] == ["as-decode", "attention"]
