"""The three states are told apart, and silence is none of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reports.document import Tone
from reports.ledger import Entry, Ledger
from reports.origin import Origin, origin_of
from reports.tables.shown import shown_where_table
from tests.reports.sample_run import record


def entry(payload: dict[str, Any], environment: dict[str, Any]) -> Entry:
    return Entry(record("stage", "k", payload, environment), "stage.jsonl", 1)


@pytest.mark.parametrize(
    ("payload", "environment", "origin"),
    [
        ({"backend": "interpret"}, {}, Origin.CPU),
        ({"backend": "simulate"}, {"origin": "cpu-interpreter"}, Origin.SIMULATOR),
        ({"backend": "device"}, {}, Origin.DEVICE),
        ({}, {"origin": "official-simulator"}, Origin.SIMULATOR),
        ({}, {"origin": "device"}, Origin.DEVICE),
        ({}, {"origin": None, "sdk": {"torch-neuronx": {"state": "absent"}}}, Origin.CPU),
        ({}, {"origin": None, "sdk": {"torch-neuronx": {"state": "real"}}}, Origin.UNSTATED),
        ({}, {"origin": "stand-in"}, Origin.STAND_IN),
        ({"backend": "device"}, {"origin": "stand-in"}, Origin.STAND_IN),
        ({"backend": "simulate"}, {"sdk": {"nki": {"state": "stand-in"}}}, Origin.STAND_IN),
        ({"backend": "interpret"}, {"origin": "stand-in"}, Origin.CPU),
        ({}, {}, Origin.UNSTATED),
        ({"backend": "quantum"}, {"origin": "device"}, Origin.UNSTATED),
    ],
)
def test_a_record_counts_for_the_state_it_names(
    payload: dict[str, Any], environment: dict[str, Any], origin: Origin
) -> None:
    assert origin_of(entry(payload, environment)) is origin


def test_cases_of_one_state_never_fill_the_column_of_another(sample: Ledger) -> None:
    entries = []
    for place, old in enumerate(sample.of_kind("parity")):
        backend = ("interpret", "simulate", "device")[place % 3]
        payload = {**old.payload, "backend": backend}
        entries.append(Entry(record("parity", f"{place}", payload), "parity.jsonl", place + 1))
    ledger = dataclasses.replace(sample, entries=tuple(entries))
    row = shown_where_table(ledger).rows[0]
    totals = [int(cell.text.split(" of ")[1]) for cell in row.cells[1:]]
    assert totals == [19, 19, 18]
    assert sum(totals) == len(entries)


def test_an_empty_state_says_that_nothing_was_shown(sample: Ledger) -> None:
    table = shown_where_table(sample)
    assert [column.title for column in table.columns[1:]] == ["CPU", "official simulator", "device"]
    for row in table.rows:
        assert [cell.text for cell in row.cells[2:]] == ["not shown", "not shown"]
        assert row.cells[2].tone is Tone.MUTED


def test_records_that_do_not_say_where_get_a_column_of_their_own(sample: Ledger) -> None:
    old = sample.of_kind("tokens")[0]
    silent = Entry(record("tokens", "k", old.payload, {"cpu": "x"}), "tokens.jsonl", 1)
    table = shown_where_table(dataclasses.replace(sample, entries=(silent,)))
    assert table.columns[-1].title == "not stated"
    assert [cell.text for cell in table.rows[1].cells[1:]] == ["not shown"] * 3 + ["1 of 1"]
