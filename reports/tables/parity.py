"""Kernel parity: status counts per op with the worst case, the red cases, every case."""

from __future__ import annotations

import shlex
from typing import Any

from harness.core.errors import ExitCode
from harness.core.status import OpStatus
from reports.document import ABSENT, Cell, Column, Row, Table, Tone
from reports.frame import rows_of
from reports.ledger import Entry, Ledger
from reports.tables.cells import (
    link_of,
    milliseconds,
    number_cell,
    scientific,
    status_cell,
    text_cell,
)
from reports.verdict import entry_exit_code

__all__ = ["case_table", "op_table", "red_case_table"]

# More than these are folded; their messages stand together at the top of the report.
_MANY_RED = 25
_ORDER = [status.value for status in OpStatus]


def op_table(ledger: Ledger) -> Table:
    """One row an op and origin: how many cases ended how, and the worst budget ratio."""
    rows = rows_of(ledger, "parity")
    present = sorted({row["status"] for row in rows}, key=_ORDER.index)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["origin"]), []).append(row)
    return Table(
        name="parity-ops",
        title="Kernels against their references",
        columns=(
            Column("op"),
            Column("shown on"),
            Column("cases", numeric=True),
            Column("worst ratio", True, "worst slice's error over its budget; 1 or less passes"),
            Column("worst value at"),
            Column("kernel", numeric=True),
            Column("golden", numeric=True),
            Column("null answers", hint="wrong answers the judge must reject"),
            *(Column(status.lower().replace("_", " "), numeric=True) for status in present),
        ),
        rows=tuple(_op_row(key, group, present) for key, group in groups.items()),
        note="Golden: the reference in float64 on the same rounded inputs. Budget: "
        "RMS(e) ≤ c·RMS(b) + floor and max(e) ≤ c_max·max(b) + floor per slice, where e is the "
        "kernel's error and b that of the reference in the kernel's own dtype.",
        empty="no kernel was compared",
    )


def _op_row(key: tuple[str, str], group: list[dict[str, Any]], present: list[str]) -> Row:
    compared = [row for row in group if row["budget_ratio"] is not None]
    worst = max(compared, key=lambda row: row["budget_ratio"], default=None)
    return Row(
        (
            text_cell(key[0]),
            text_cell(key[1]),
            number_cell(len(group), str(len(group)), link_of(group[0])),
            *_worst_cells(worst),
            _null_cell(group),
            *(_count_cell(group, status) for status in present),
        )
    )


def _count_cell(group: list[dict[str, Any]], status: str) -> Cell:
    """How many, linked to the first of them."""
    found = [row for row in group if row["status"] == status]
    if not found:
        return Cell("·", 0.0, tone=Tone.MUTED)
    tone = Tone.GOOD if status == "PASS" else Tone.BAD
    if status in ("SKIPPED", "UNSUPPORTED", "VACUOUS"):
        tone = Tone.DOUBT
    return Cell(str(len(found)), float(len(found)), link_of(found[0]), tone)


def _worst_cells(row: dict[str, Any] | None) -> tuple[Cell, Cell, Cell, Cell]:
    if row is None:
        absent = Cell(ABSENT, tone=Tone.MUTED)
        return absent, absent, absent, absent
    link, ratio = link_of(row), row["budget_ratio"]
    tone = Tone.PLAIN if ratio <= 1 else Tone.BAD
    index = ", ".join(str(place) for place in row["worst_index"])
    return (
        Cell(_ratio_text(row), ratio, link, tone, row["case_id"]),
        text_cell(f"{row['output']}[{index}]".replace(" ", "\u00a0"), link),
        number_cell(row["worst_kernel_value"], f"{row['worst_kernel_value']:.7g}", link),
        number_cell(row["worst_golden_value"], f"{row['worst_golden_value']:.7g}", link),
    )


def _ratio_text(row: dict[str, Any]) -> str:
    """Exact outputs have no budget: they are equal bit for bit, or so many elements are not."""
    mismatched = row["num_mismatched"]
    if mismatched is None:
        return scientific(row["budget_ratio"])
    return f"{mismatched} differ" if mismatched else "exact"


def _null_cell(group: list[dict[str, Any]]) -> Cell:
    judged = sum(row["nulls_judged"] for row in group)
    rejected = sum(row["nulls_rejected"] for row in group)
    if not judged:
        return Cell("none judged", -1.0, tone=Tone.DOUBT)
    tone = Tone.GOOD if rejected == judged else Tone.BAD
    first = next(row for row in group if row["nulls_judged"])
    text = f"{rejected}\u00a0of\u00a0{judged} rejected"
    return Cell(text, rejected / judged, link_of(first), tone)


def red_case_table(ledger: Ledger) -> Table:
    """The cases that did not pass, with what is wrong and what to type to see it again."""
    red = [item for item in ledger.of_kind("parity") if entry_exit_code(item) is not ExitCode.PASS]
    return Table(
        name="parity-red",
        title=f"Cases that did not pass: {len(red)}",
        columns=(
            Column("status"),
            Column("case"),
            Column("backend"),
            Column("what is wrong"),
            Column("replay"),
        ),
        rows=tuple(_red_row(entry) for entry in red),
        folded=len(red) > _MANY_RED,
        empty="none",
    )


def _red_row(entry: Entry) -> Row:
    payload = entry.payload
    bundle = payload.get("bundle")
    replay = f"neuron-harness parity --replay {shlex.quote(str(bundle))}" if bundle else None
    return Row(
        (
            status_cell(entry),
            text_cell(payload["case_id"]),
            text_cell(payload["backend"]),
            text_cell(payload.get("message", "")),
            text_cell(replay),
        )
    )


def case_table(ledger: Ledger) -> Table:
    """Every case."""
    entries = ledger.of_kind("parity")
    rows = rows_of(ledger, "parity")
    return Table(
        name="parity-cases",
        title=f"All {len(rows)} cases",
        columns=(
            Column("case"),
            Column("shown on"),
            Column("status"),
            Column("ratio", True, "worst slice's error over its budget"),
            Column("max abs error", numeric=True),
            Column("compared", True, "elements compared"),
            Column("time ms", True, "median wall time of the kernel where it ran"),
            Column("counted"),
        ),
        rows=tuple(_case_row(entry, row) for entry, row in zip(entries, rows, strict=True)),
        folded=True,
    )


def _case_row(entry: Entry, row: dict[str, Any]) -> Row:
    link, elapsed_ms, ratio = link_of(row), row["elapsed_ms"], row["budget_ratio"]
    where = row["backend"]
    if row["num_fallbacks"]:
        where += f", {row['num_fallbacks']} ops elsewhere"
    counters = ", ".join(f"{name} {value:g}" for name, value in sorted(row["counters"].items()))
    return Row(
        (
            text_cell(row["case_id"], link),
            text_cell(where),
            status_cell(entry),
            number_cell(ratio, None if ratio is None else _ratio_text(row), link),
            number_cell(row["max_abs"], link=link),
            number_cell(row["num_compared"], str(row["num_compared"]), link),
            number_cell(elapsed_ms, milliseconds(elapsed_ms) if elapsed_ms else None, link),
            text_cell(counters),
        )
    )
