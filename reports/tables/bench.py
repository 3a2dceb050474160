"""The bench table: a step's time and what a step does, beside the published rows."""

from __future__ import annotations

from reports.bench import COUNTS, BenchRow, bench_rows
from reports.document import Cell, Column, Row, Table, Tone
from reports.ledger import Ledger
from reports.published import (
    PUBLISHED,
    PUBLISHED_LABEL,
    PUBLISHED_METHOD,
    PUBLISHED_NOTES,
    PublishedFigure,
)
from reports.tables.cells import interval_cell, milliseconds, number_cell, text_cell

__all__ = ["bench_table"]

_PLAIN = "1 (plain)"


def bench_table(ledger: Ledger) -> Table:
    """One row a measured point, setting by setting, then the published rows.

    A column stays where nothing was told: that a count is missing is part of what it says.
    """
    measured = tuple(_measured(row) for row in bench_rows(ledger))
    return Table(
        name="sweep-bench",
        title="What a step takes and does, by setting",
        columns=(
            Column("setting"),
            Column("shape", hint="input, output, requests in flight, rate"),
            Column("source"),
            Column("step ms", True, "(last token − first) / decode steps"),
            Column("TPOT ms", True, "(last token − first) / (n − 1)"),
            Column("acceptance", True, "tokens a step gives (share of blocks accepted, by place)"),
            Column("TPOT × acceptance ms", True, "what a plain step compares with"),
            *(Column(title, True) for title in COUNTS.values()),
        ),
        rows=(*measured, *(_published(figure) for figure in PUBLISHED)),
        note="Counts are per decode step of rank 0, prefill launches per prompt, compile events "
        "and overflows over all measured requests of the point; a dash is what nobody told. "
        f"Published: {PUBLISHED_METHOD}. {' '.join(PUBLISHED_NOTES)}",
    )


def _measured(row: BenchRow) -> Row:
    product = row.tpot_times_acceptance_ms
    acceptance = None if row.acceptance is None else f"{row.acceptance:.2f}"
    if acceptance and row.acceptance_by_place:
        acceptance += f" ({' '.join(f'{share:.2f}' for share in row.acceptance_by_place)})"
    return Row(
        (
            text_cell(row.setting, row.link),
            text_cell(_shape(row)),
            text_cell(f"measured here on {row.origin}"),
            interval_cell(row.step_ms, row.link),
            interval_cell(row.tpot_ms, row.link),
            number_cell(row.acceptance, _PLAIN if row.is_plain else acceptance, row.link),
            number_cell(product, None if product is None else milliseconds(product), row.link),
            *(_count_cell(row, name) for name in COUNTS),
        )
    )


def _count_cell(row: BenchRow, name: str) -> Cell:
    count = row.counts.get(name)
    return number_cell(count, None if count is None else f"{count:g}", row.link)


def _shape(row: BenchRow) -> str:
    parts = [f"in={row.input_len}"]
    if row.output_len is not None:
        parts.append(f"out={row.output_len}")
    if row.concurrency not in (None, 1):
        parts.append(f"in flight={row.concurrency}")
    if row.request_rate:
        parts.append(f"rate={row.request_rate:g}/s")
    return " ".join(parts)


def _published(figure: PublishedFigure) -> Row:
    low = figure.tpot_ms[0] if figure.tpot_ms else None
    return Row(
        (
            text_cell(figure.stack),
            text_cell(f"in={figure.input_len} out=128"),
            Cell(PUBLISHED_LABEL, PUBLISHED_LABEL, tone=Tone.MUTED),
            number_cell(figure.step_ms, figure.step_text),
            number_cell(low, figure.tpot_text),
            number_cell(figure.acceptance, figure.acceptance_text),
            number_cell(
                None if low is None or figure.acceptance is None else low * figure.acceptance,
                figure.product_text,
            ),
            *(number_cell(None) for _ in COUNTS),
        )
    )
