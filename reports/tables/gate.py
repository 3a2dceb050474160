"""Gate verdicts and the metrics they were taken from."""

from __future__ import annotations

from typing import Any

from reports.document import ABSENT, Cell, Column, Row, Table, Tone
from reports.frame import rows_of
from reports.ledger import Entry, Ledger
from reports.tables.cells import link_of, number_cell, scientific, status_cell, text_cell

__all__ = ["metric_table", "telling_verdict_table", "verdict_table"]

_MAX_LISTED_VALUES = 4
_PLAIN = ("PASS", "NEW")


def telling_verdict_table(ledger: Ledger) -> Table:
    """The verdicts worth a look: all that are not plain PASS or NEW, the counting ones first."""
    pairs = _pairs(ledger)
    telling = [pair for pair in pairs if pair[1]["status"] not in _PLAIN]
    plain = [row["status"] for _, row in pairs if row["status"] in _PLAIN]
    counts = " and ".join(f"{plain.count(name)} {name}" for name in _PLAIN if name in plain)
    return _table(
        "gate-telling",
        "Verdicts worth a look",
        telling,
        note=f"Beside them {counts}." if counts else "",
        empty="none: every verdict is PASS or NEW" if pairs else "no gate was run",
    )


def verdict_table(ledger: Ledger) -> Table:
    """One row a judged metric; advisory ones are marked and do not count."""
    pairs = _pairs(ledger)
    return _table("gate-verdicts", f"All {len(pairs)} verdicts", pairs, folded=True)


def _pairs(ledger: Ledger) -> list[tuple[Entry, dict[str, Any]]]:
    rows = zip(ledger.of_kind("gate"), rows_of(ledger, "gate"), strict=True)
    return sorted(rows, key=lambda pair: pair[1]["advisory"])


def _table(
    name: str,
    title: str,
    pairs: list[tuple[Entry, dict[str, Any]]],
    *,
    note: str = "",
    folded: bool = False,
    empty: str = "no gate was run",
) -> Table:
    return Table(
        name=name,
        title=title,
        columns=(
            Column("metric"),
            Column("status"),
            Column("counts", hint="advisory verdicts do not count towards the exit code"),
            Column("baseline", numeric=True),
            Column("candidate", numeric=True),
            Column("unit"),
            Column("effect", True, "relative change of the estimate"),
            Column("lower bound", True, "one-sided 95 % bound of the effect"),
            Column("p", True, "exact permutation, after Holm"),
            Column("pairs", True, "interleaved pairs of runs"),
            Column("what was found"),
        ),
        rows=tuple(_verdict_row(entry, row) for entry, row in pairs),
        note=note,
        folded=folded,
        empty=empty,
    )


def _verdict_row(entry: Entry, row: dict[str, Any]) -> Row:
    link, effect, bound = link_of(row), row["effect"], row["lower_bound"]
    return Row(
        (
            text_cell(row["metric"], link),
            status_cell(entry),
            text_cell("advisory" if row["advisory"] else "yes"),
            _value_cell(row, "baseline"),
            _value_cell(row, "candidate"),
            text_cell(row["unit"]),
            number_cell(effect, f"{effect:+.1%}" if effect is not None else None, link),
            number_cell(bound, f"{bound:+.1%}" if bound is not None else None, link),
            number_cell(row["p_value"], link=link),
            number_cell(row["num_pairs"] or None, str(row["num_pairs"]), link),
            text_cell(row["message"]),
        )
    )


def _value_cell(row: dict[str, Any], side: str) -> Cell:
    value = row[side]
    if isinstance(value, (int, float)):
        return number_cell(value, f"{value:.6g}", link_of(row))
    return text_cell(value, link_of(row))


def metric_table(ledger: Ledger) -> Table:
    """Every metric that the run recorded."""
    rows = rows_of(ledger, "metric")
    return Table(
        name="metrics",
        title=f"All {len(rows)} recorded metrics",
        columns=(
            Column("metric"),
            Column("value", numeric=True),
            Column("unit"),
            Column("better"),
            Column("kind"),
            Column("samples", numeric=True),
        ),
        rows=tuple(_metric_row(row) for row in rows),
        folded=True,
        empty="no metric was recorded",
    )


def _metric_row(row: dict[str, Any]) -> Row:
    link, values = link_of(row), row["values"]
    texts = [scientific(item) if isinstance(item, float) else str(item) for item in values]
    text = ", ".join(texts[:_MAX_LISTED_VALUES]) or ABSENT
    if len(texts) > _MAX_LISTED_VALUES:
        text += ", …"
    first = values[0] if values else None
    direction = {"lower": "lower", "higher": "higher", "equal": "unchanged"}
    return Row(
        (
            text_cell(row["name"], link),
            Cell(text, first, link, Tone.PLAIN if values else Tone.MUTED),
            text_cell(row["unit"]),
            text_cell(direction.get(str(row["direction"]), row["direction"])),
            text_cell(row["metric_kind"]),
            number_cell(len(values), str(len(values)), link),
        )
    )
