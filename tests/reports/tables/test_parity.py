"""The parity table: counts by status, the worst case with both values."""

from __future__ import annotations

from reports.document import Tone
from reports.ledger import Ledger
from reports.tables.parity import case_table, op_table, red_case_table


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


def test_every_case_is_listed(sample: Ledger) -> None:
    table = case_table(sample)
    assert (len(table.rows), table.folded) == (56, True)
