"""Several runs side by side: what changed, what is missing, how times relate to the first run.

A ratio of two single runs is shown and not judged: that is the gate's work, with enough pairs.
Runs from different environments are shown too, with the difference in the first sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import ExitCode, UsageError
from harness.core.results import PointStatus
from harness.core.status import worst_exit_code
from reports.axes import point_name, telling_axes
from reports.document import ABSENT, Cell, Column, Document, Figure, Row, Section, Table, Tone
from reports.frame import rows_of
from reports.interval import Interval
from reports.ledger import Entry, Ledger, read_run
from reports.plots.latency import tpot_figure, ttft_figure
from reports.tables.cells import milliseconds, number_cell, status_cell, text_cell
from reports.tables.surroundings import flat_environment
from reports.verdict import AREAS, RunVerdict, tone_of, verdict_of

__all__ = ["comparison_of", "comparison_verdict", "read_runs"]

# Differences in these do not make times incomparable.
_HARMLESS = ("git", "seeds")
_MISSING = Cell("missing", None, tone=Tone.DOUBT)


def read_runs(run_dirs: Sequence[Path]) -> list[Ledger]:
    """Read several runs, each with at least one record.

    Raises:
        UsageError: a directory is named twice or is no run.
        VacuousError: a run recorded nothing.
    """
    resolved = [path.resolve() for path in run_dirs]
    for path in resolved:
        if resolved.count(path) > 1:
            raise UsageError(f"{path}: is named twice; a run compared with itself shows nothing")
    return [read_run(path).require_records() for path in run_dirs]


def comparison_verdict(ledgers: Sequence[Ledger]) -> ExitCode:
    """The worst of all runs."""
    return worst_exit_code(verdict_of(ledger).exit_code for ledger in ledgers)


def comparison_of(ledgers: Sequence[Ledger]) -> Document:
    """Everything the comparison says. The first run is what the others are held against."""
    names = _names(ledgers)
    verdicts = [verdict_of(ledger) for ledger in ledgers]
    environment = _environment_table(ledgers, names)
    unlike = [
        name
        for row in environment.rows
        if (name := row.cells[0].text).partition(".")[0] not in _HARMLESS
    ]
    statuses = {kind: _status_table(ledgers, names, kind) for kind in ("parity", "tokens", "gate")}
    worst = comparison_verdict(ledgers)
    return Document(
        title=f"neuron-harness comparison · {', '.join(names)}",
        verdict=f"{len(ledgers)} RUNS",
        tone=tone_of(worst),
        sentence=_sentence(names, verdicts, statuses, unlike),
        facts=(("first run", names[0]), ("others", ", ".join(names[1:]))),
        tiles=(),
        notices=tuple(
            f"{name}: {notice}"
            for name, ledger in zip(names, ledgers, strict=True)
            for notice in ledger.notices
        ),
        sections=(
            Section("runs", "Runs", tables=(_run_table(ledgers, names, verdicts), environment)),
            *(
                Section(kind, title, tables=(statuses[kind],))
                for kind, title in (("parity", "Kernel parity"), ("tokens", "Token match"))
            ),
            Section(
                "sweep",
                "Latency",
                ("Ratios are to the first run; above 1 is slower. None of them is judged here.",),
                figures=_figures(ledgers, names),
                tables=(_latency_table(ledgers, names),),
            ),
            Section("gate", "Gate", tables=(statuses["gate"],)),
            Section("metrics", "Metrics", tables=(_metric_table(ledgers, names),)),
        ),
    )


def _names(ledgers: Sequence[Ledger]) -> list[str]:
    """Run ids, with a number where two runs have the same."""
    ids = [ledger.run_id for ledger in ledgers]
    return [
        name if ids.count(name) == 1 else f"{name} ({place})"
        for place, name in enumerate(ids, start=1)
    ]


def _sentence(
    names: Sequence[str],
    verdicts: Sequence[RunVerdict],
    statuses: Mapping[str, Table],
    unlike: Sequence[str],
) -> str:
    words = ", ".join(
        f"{name} {verdict.word}" for name, verdict in zip(names, verdicts, strict=True)
    )
    changed = [
        f"{len(table.rows)} of {AREAS[kind]}" for kind, table in statuses.items() if table.rows
    ]
    text = f"{words}. Statuses that differ: {', '.join(changed) or 'none'}."
    if unlike:
        text += f" The environments differ in {', '.join(unlike)}: times are not comparable."
    return text


def _run_table(
    ledgers: Sequence[Ledger], names: Sequence[str], verdicts: Sequence[RunVerdict]
) -> Table:
    rows = []
    for ledger, name, verdict in zip(ledgers, names, verdicts, strict=True):
        areas = {area.kind: area for area in verdict.areas}
        cells = [
            Cell(
                f"{areas[kind].num_good} of {areas[kind].num_judged}",
                tone=tone_of(areas[kind].exit_code),
            )
            if kind in areas
            else Cell(ABSENT, tone=Tone.MUTED)
            for kind in AREAS
        ]
        word = Cell(verdict.word, verdict.word, tone=tone_of(verdict.exit_code))
        rows.append(
            Row((text_cell(name), word, *cells, text_cell(ledger.run.get("start")))),
        )
    return Table(
        name="runs",
        title="Runs",
        columns=(
            Column("run"),
            Column("verdict"),
            *(Column(title) for title in AREAS.values()),
            Column("started"),
        ),
        rows=tuple(rows),
    )


def _environment_table(ledgers: Sequence[Ledger], names: Sequence[str]) -> Table:
    flats = [flat_environment(ledger.environment) for ledger in ledgers]
    fields = sorted({field for flat in flats for field in flat})
    rows = [
        Row((text_cell(field), *(text_cell(flat.get(field)) for flat in flats)))
        for field in fields
        if len({flat.get(field) for flat in flats}) > 1
    ]
    return Table(
        name="environments",
        title="Where the environments differ",
        columns=(Column("what"), *(Column(name) for name in names)),
        rows=tuple(rows),
        empty="nowhere",
    )


def _status_table(ledgers: Sequence[Ledger], names: Sequence[str], kind: str) -> Table:
    """The records whose status is not the same in every run, or that a run lacks."""
    by_key = [{entry.key: entry for entry in ledger.of_kind(kind)} for ledger in ledgers]
    keys = list(dict.fromkeys(key for entries in by_key for key in entries))
    rows = []
    for key in keys:
        found = [entries.get(key) for entries in by_key]
        if len({entry.payload["status"] if entry else None for entry in found}) > 1:
            cells = (_status_or_missing(entry) for entry in found)
            rows.append(Row((text_cell(key), *cells)))
    return Table(
        name=f"changed-{kind}",
        title="Statuses that differ",
        columns=(Column("record"), *(Column(name) for name in names)),
        rows=tuple(rows),
        note=f"{len(keys) - len(rows)} records have the same status in every run.",
        empty="none" if keys else "no run recorded any",
    )


def _status_or_missing(entry: Entry | None) -> Cell:
    return _MISSING if entry is None else status_cell(entry)._replace(link=None)


def _figures(ledgers: Sequence[Ledger], names: Sequence[str]) -> tuple[Figure, ...]:
    rows = [
        {**row, "run": name, "anchor": ""}  # a comparison holds no records to lead to
        for ledger, name in zip(ledgers, names, strict=True)
        for row in rows_of(ledger, "sweep")
    ]
    figures = (ttft_figure(rows), tpot_figure(rows))
    return tuple(figure for figure in figures if figure is not None)


def _latency_table(ledgers: Sequence[Ledger], names: Sequence[str]) -> Table:
    """TTFT and TPOT of each point in every run, joined by the point's key."""
    by_key = [{row["key"]: row for row in rows_of(ledger, "sweep")} for ledger in ledgers]
    samples = {key: row for points in reversed(by_key) for key, row in points.items()}
    axes = telling_axes(list(samples.values()))
    rows = []
    for key in dict.fromkeys(key for points in by_key for key in points):
        found = [points.get(key) for points in by_key]
        name = point_name(samples[key], axes) or key
        for column, title in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
            cells = [_latency_cell(row, found[0], column) for row in found]
            rows.append(Row((text_cell(name, title=key), text_cell(title), *cells)))
    return Table(
        name="latency",
        title="Medians in ms",
        columns=(Column("point"), Column("metric"), *(Column(name, True) for name in names)),
        rows=tuple(rows),
        note="Points are joined by the hash of their whole configuration. × is the ratio of "
        "medians to the first run; a + marks intervals that do not overlap.",
        empty="no run measured any",
    )


def _latency_cell(row: dict[str, Any] | None, first: dict[str, Any] | None, column: str) -> Cell:
    if row is None:
        return _MISSING
    interval: Interval | None = row[column]
    if interval is None:
        tone = Tone.MUTED if row["status"] == PointStatus.PRUNED else Tone.DOUBT
        return Cell(str(row["status"]).lower(), None, tone=tone)
    text = milliseconds(interval.median)
    base: Interval | None = first[column] if first else None
    if base is not None and row is not first and base.median > 0:
        apart = interval.low > base.high or interval.high < base.low
        text += f" ×{interval.median / base.median:.2f}{'+' if apart else ''}"
    return Cell(text, interval.median, title=f"{interval.method}, {row['source']}")


def _metric_table(ledgers: Sequence[Ledger], names: Sequence[str]) -> Table:
    """Deterministic metrics that differ; timings have the table of latencies."""
    by_key = [
        {row["key"]: row for row in rows_of(ledger, "metric") if row["unit"] != "ms"}
        for ledger in ledgers
    ]
    rows = []
    for key in dict.fromkeys(key for metrics in by_key for key in metrics):
        found = [metrics.get(key) for metrics in by_key]
        if len({row["values"] if row else None for row in found}) > 1:
            rows.append(Row((text_cell(key), *(_metric_cell(row) for row in found))))
    return Table(
        name="changed-metrics",
        title="Metrics that differ",
        columns=(Column("metric"), *(Column(name, True) for name in names)),
        rows=tuple(rows),
        empty="none",
    )


def _metric_cell(row: dict[str, Any] | None) -> Cell:
    if row is None:
        return _MISSING
    value = row["values"][0] if row["values"] else None
    return number_cell(value) if isinstance(value, (int, float)) else text_cell(value)
