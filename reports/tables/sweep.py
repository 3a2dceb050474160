"""Latency: every cell of the matrix with failed and pruned ones, and the published rows beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.axes import AXIS_TITLES, NUMERIC_AXES, SWEEP_AXES, point_name, telling_axes
from reports.document import Cell, Column, Link, Row, Table, Tone
from reports.frame import rows_of
from reports.ledger import Entry, Ledger
from reports.published import PUBLISHED, PUBLISHED_LABEL, PUBLISHED_METHOD, PUBLISHED_NOTES
from reports.tables.cells import (
    interval_cell,
    link_of,
    milliseconds,
    number_cell,
    status_cell,
    text_cell,
)

__all__ = ["beside_published_table", "point_table"]

_MAX_BESIDE_ROWS = 60


def point_table(ledger: Ledger) -> Table:
    """Every cell of the matrix: measured, failed, crashed or pruned with its reason."""
    entries, rows = ledger.of_kind("sweep"), rows_of(ledger, "sweep")
    axes = list(dict.fromkeys(["input_len", "cp", *telling_axes(rows)]))
    fixed = [axis for axis in SWEEP_AXES if axis not in axes and _shared(rows, axis)]
    constant = ", ".join(f"{AXIS_TITLES[axis]} {rows[0][axis]}" for axis in fixed)
    return Table(
        name="sweep-points",
        title="Every cell of the matrix",
        columns=(
            *(Column(AXIS_TITLES[axis], axis in NUMERIC_AXES) for axis in axes),
            Column("shown on"),
            Column("status"),
            Column("TTFT ms", True, "median [interval] of first token − send"),
            Column("TPOT ms", True, "median [interval] of (last − first) / (n − 1)"),
            Column(
                "tokens/s",
                True,
                "output tokens over the time in which requests of the point were in flight",
            ),
            Column("requests", True, "completed; failed ones beside"),
            Column("warm-ups", True, "excluded from every number"),
            Column("compiles", True, "compile events during measurement"),
            Column("client CPU", True, "of one core, what the client itself used"),
            Column("doubts", hint="what may have spoiled the measurement"),
            Column("reason"),
        ),
        rows=tuple(_point_row(entry, row, axes) for entry, row in zip(entries, rows, strict=True)),
        note=(f"All points: {constant}. " if constant else "")
        + "Median with the 95 % interval of the median; below six requests the range.",
        empty="no point was planned",
    )


def _shared(rows: Sequence[dict[str, Any]], axis: str) -> bool:
    """Whether every point has the same, known value."""
    return len({row[axis] for row in rows}) == 1 and rows[0][axis] is not None


def _point_row(entry: Entry, row: dict[str, Any], axes: Sequence[str]) -> Row:
    link = link_of(row)
    rate, compiles = row["output_tokens_per_s"], row["compile_events"]
    cpu_share = row["client_cpu_share"]
    requests = str(row["num_completed"])
    if row["num_failed"]:
        requests += f" (+{row['num_failed']} failed)"
    return Row(
        (
            *(_axis_cell(row, axis, link) for axis in axes),
            text_cell(row["origin"]),
            status_cell(entry),
            interval_cell(row["ttft_ms"], link),
            interval_cell(row["tpot_ms"], link),
            number_cell(rate, milliseconds(rate) if rate is not None else None, link),
            number_cell(row["num_completed"], requests, link),
            number_cell(row["num_warmups"], str(row["num_warmups"]), link),
            number_cell(compiles, str(compiles), link)._replace(
                tone=Tone.MUTED if compiles is None else Tone.BAD if compiles else Tone.PLAIN
            ),
            number_cell(cpu_share, None if cpu_share is None else f"{cpu_share:.0%}", link),
            text_cell(row["doubts"])._replace(tone=Tone.DOUBT if row["doubts"] else Tone.MUTED),
            text_cell(row["message"] or "; ".join(dict.fromkeys(row["failures"]))),
        )
    )


def _axis_cell(row: dict[str, Any], axis: str, link: Link) -> Cell:
    if axis in NUMERIC_AXES:
        value = row[axis]
        return number_cell(value, None if value is None else str(value), link)
    return text_cell(row[axis])


def beside_published_table(ledger: Ledger) -> Table:
    """This run's medians and the published figures, one input length after the other."""
    measured = [row for row in rows_of(ledger, "sweep") if row["ttft_ms"] is not None]
    axes = telling_axes(measured, but=("input_len",))
    left_out = max(0, len(measured) - _MAX_BESIDE_ROWS)
    measured = measured[:_MAX_BESIDE_ROWS]
    rows = [(row["input_len"] or 0, 0, _measured_row(row, axes)) for row in measured]
    rows += [
        (
            figure.input_len,
            1,
            Row(
                (
                    number_cell(figure.input_len, str(figure.input_len)),
                    text_cell(figure.stack),
                    Cell(PUBLISHED_LABEL, PUBLISHED_LABEL, tone=Tone.MUTED),
                    number_cell(figure.ttft_ms, milliseconds(figure.ttft_ms)),
                    number_cell(figure.tpot_ms[0] if figure.tpot_ms else None, figure.tpot_text),
                )
            ),
        )
        for figure in PUBLISHED
    ]
    return Table(
        name="sweep-published",
        title="This run beside published figures",
        columns=(
            Column("input", numeric=True),
            Column("stack"),
            Column("source"),
            Column("TTFT ms", numeric=True),
            Column("TPOT ms", numeric=True),
        ),
        rows=tuple(row for _, _, row in sorted(rows, key=lambda item: item[:2])),
        note=f"Not comparable hardware. Published: {PUBLISHED_METHOD}. {' '.join(PUBLISHED_NOTES)}"
        + (f" {left_out} measured cells more stand in the table of all cells." if left_out else ""),
    )


def _measured_row(row: dict[str, Any], axes: Sequence[str]) -> Row:
    link = link_of(row)
    setting = point_name(row, axes)
    return Row(
        (
            number_cell(row["input_len"], str(row["input_len"]), link),
            text_cell(f"this run {setting}".strip()),
            text_cell(f"measured here on {row['origin']}"),
            interval_cell(row["ttft_ms"], link),
            interval_cell(row["tpot_ms"], link),
        )
    )
