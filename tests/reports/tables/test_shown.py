"""What needs attention stands on top, told once."""

from __future__ import annotations

import dataclasses

from reports.ledger import Entry, Ledger
from reports.tables.shown import MAX_ATTENTION_ROWS, attention_table, worst_first
from tests.reports.sample_run import record


def red_cases(sample: Ledger, messages: list[str]) -> Ledger:
    old = next(item for item in sample.of_kind("parity") if item.payload["status"] == "RUN_ERROR")
    entries = [
        Entry(record("parity", f"op/{place}", {**old.payload, "message": message}), "x", place + 1)
        for place, message in enumerate(messages)
    ]
    return dataclasses.replace(sample, entries=tuple(entries))


def test_records_with_one_message_share_a_line(sample: Ledger) -> None:
    ledger = red_cases(sample, ["bank overflow", "no operand", "bank overflow", "bank overflow"])
    lines = [(row.cells[2].text, row.cells[3].text) for row in attention_table(ledger).rows]
    assert lines == [("op/0 and 2 more like it", "bank overflow"), ("op/1", "no operand")]


def test_what_is_left_out_is_counted(sample: Ledger) -> None:
    table = attention_table(red_cases(sample, [f"message {place}" for place in range(40)]))
    assert len(table.rows) == MAX_ATTENTION_ROWS
    assert table.note == "The worst 25 of 40 lines; the others stand in their sections."


def test_the_gravest_come_first_and_what_does_not_count_is_absent(sample: Ledger) -> None:
    statuses = [entry.payload["status"] for entry in worst_first(sample)]
    assert statuses[:2] == ["HANG", "CRASHED"]
    assert statuses[-3:] == ["SKIPPED", "UNSUPPORTED", "SKIPPED"]
    assert not {"PRUNED", "PASS", "OK", "MATCH", "INCONCLUSIVE"} & set(statuses)
