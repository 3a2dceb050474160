"""The parity table: counts by status, the worst case with both values."""

from __future__ import annotations

import dataclasses

import pytest

from harness.core.results import ParityResult
from harness.core.status import OpStatus
from reports.document import Tone
from reports.ledger import Entry, Ledger
from reports.tables.parity import case_table, op_table, red_case_table
from tests.reports.sample_run import output_errors, record


def test_each_op_has_its_counts_and_its_worst_case(sample: Ledger) -> None:
    table = op_table(sample)
    titles = [column.title for column in table.columns]
    row = next(row for row in table.rows if row.cells[0].text == "sparse_attention").cells
    assert row[titles.index("cases")].text == "8"
    assert row[titles.index("pass")].text == "7"
    assert row[titles.index("out of tolerance")].text == "1"
    assert row[titles.index("worst ratio")].text == "4.2"
    assert row[titles.index("worst ratio")].tone is Tone.BAD
    assert row[titles.index("worst value at")].text == "y[3,\u00a017]"
    assert row[titles.index("kernel")].text == "1.0042"
    assert row[titles.index("golden")].text == "1"
    assert row[titles.index("null answers")].text == "3\u00a0of\u00a03 rejected"


def test_status_columns_add_up_to_the_cases(sample: Ledger) -> None:
    table = op_table(sample)
    first = [column.title for column in table.columns].index("pass")
    for row in table.rows:
        assert sum(int(cell.sort or 0) for cell in row.cells[first:]) == int(row.cells[2].text)


def test_every_number_of_the_op_table_leads_to_a_record(sample: Ledger) -> None:
    for row in op_table(sample).rows:
        for cell in row.cells:
            assert (
                cell.link is not None
                or not any(sign.isdigit() for sign in cell.text)
                or (cell.text.startswith("linear_fp"))
            )


def test_red_cases_say_what_is_wrong(sample: Ledger) -> None:
    found = {row.cells[0].text: row.cells[3].text for row in red_case_table(sample).rows}
    assert found["RUN_ERROR"] == "nc_matmul: operand `stationary` is in PSUM"
    assert set(found) == {
        "OUT_OF_TOLERANCE", "RUN_ERROR", "UNWRITTEN", "TIMEOUT", "UNSUPPORTED", "SKIPPED",
    }  # fmt: skip


@pytest.mark.parametrize(("mismatched", "text"), [(0, "exact"), (3, "3 differ"), (None, "0")])
def test_an_exact_output_has_no_ratio(sample: Ledger, mismatched: int | None, text: str) -> None:
    result = ParityResult(
        "op/x",
        "op",
        "interpret",
        OpStatus.OUT_OF_TOLERANCE if mismatched else OpStatus.PASS,
        "3 ids differ" if mismatched else "",
        errors=(output_errors(0.0, mismatched=mismatched),),
    )
    entry = Entry(record("parity", "op/x", result), "parity.jsonl", 1)
    table = op_table(dataclasses.replace(sample, entries=(entry,)))
    assert table.rows[0].cells[3].text == text


def test_a_red_case_says_what_to_type_to_see_it_again(sample: Ledger) -> None:
    old = sample.of_kind("parity")[1]
    replayable = {**old.payload, "bundle": "runs/a b/bundles/x"}
    entry = Entry(record("parity", "op/x", replayable), "parity.jsonl", 1)
    (row,) = red_case_table(dataclasses.replace(sample, entries=(entry,))).rows
    assert row.cells[4].text == "neuron-harness parity --replay 'runs/a b/bundles/x'"


def test_every_case_is_listed(sample: Ledger) -> None:
    table = case_table(sample)
    assert (len(table.rows), table.folded) == (56, True)
