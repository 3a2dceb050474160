"""The matrix: failed and pruned cells stay visible, published rows are labelled."""

from __future__ import annotations

from reports.ledger import Ledger
from reports.published import PUBLISHED, PUBLISHED_LABEL
from reports.tables.sweep import beside_published_table, point_table


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
