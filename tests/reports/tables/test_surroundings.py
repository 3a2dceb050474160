"""Environment, stages and the list of records."""

from __future__ import annotations

import dataclasses

from reports.ledger import Entry, Ledger
from reports.tables.gate import telling_verdict_table, verdict_table
from reports.tables.surroundings import environment_table, record_table, stage_table
from tests.reports.sample_run import ENVIRONMENT, record


def test_environments_that_differ_within_a_run_are_both_listed(sample: Ledger) -> None:
    old = sample.of_kind("sweep")[0]
    moved = record("sweep", "k", old.payload, {**ENVIRONMENT, "num_cores": 64})
    ledger = dataclasses.replace(sample, entries=(*sample.entries, Entry(moved, "sweep.jsonl", 13)))
    values = {row.cells[0].text: row.cells[1].text for row in environment_table(ledger).rows}
    assert values["num_cores"] == "2 | 64"
    assert values["sdk.nki.state"] == "absent"
    assert "2 environments" in environment_table(ledger).note


def test_every_record_has_its_row_its_anchor_and_its_place(sample: Ledger) -> None:
    table = record_table(sample)
    assert [row.anchor for row in table.rows] == [entry.anchor for entry in sample.entries]
    assert table.rows[0].cells[2].text == "parity.jsonl:1"


def test_long_lists_are_cut_and_say_by_how_much(sample: Ledger) -> None:
    texts = [row.cells[4].text for row in record_table(sample).rows if row.cells[0].text == "sweep"]
    assert "… 12 more" in texts[0]
    assert all(len(text) < 1600 for text in texts)


def test_stages_have_their_times(sample: Ledger) -> None:
    rows = stage_table(sample).rows
    assert [row.cells[0].text for row in rows] == [
        "checkpoint",
        "parity",
        "tokens",
        "sweep",
        "gate",
    ]
    assert rows[1].cells[2].text == "18.40"


def test_verdicts_that_count_stand_before_advisory_ones(sample: Ledger) -> None:
    rows = verdict_table(sample).rows
    assert [row.cells[2].text for row in rows] == ["yes"] * 5 + ["advisory"] * 4
    regressed = next(row.cells for row in rows if row.cells[1].text == "REGRESSED")
    assert [cell.text for cell in regressed[6:10]] == ["+11.4%", "+8.9%", "0.002", "10"]


def test_verdicts_worth_a_look_leave_out_the_plain_ones_and_count_them(sample: Ledger) -> None:
    table = telling_verdict_table(sample)
    assert {row.cells[1].text for row in table.rows} == {
        "REGRESSED", "IMPROVED", "INCONCLUSIVE", "MISSING", "NO_BASELINE", "INCOMPARABLE",
        "INVALID",
    }  # fmt: skip
    assert table.note == "Beside them 1 PASS and 1 NEW."


def test_columns_in_which_nothing_is_said_are_left_out(sample: Ledger, green: Ledger) -> None:
    assert len(verdict_table(sample).without_empty_columns().columns) == 11
    titles = [column.title for column in verdict_table(green).without_empty_columns().columns]
    assert titles == [
        "metric", "status", "counts", "baseline", "candidate", "unit", "what was found",
    ]  # fmt: skip
