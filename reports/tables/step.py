"""Where a decode step's time goes: its parts with the residual, and its ops beside estimates."""

from __future__ import annotations

from harness.core.step_ledger import PartKind
from reports.document import ABSENT, Cell, Column, Link, Row, Table, Tone
from reports.ledger import Entry, Ledger
from reports.step_times import Account, Line, OpLine, account_of
from reports.tables.cells import number_cell, text_cell

__all__ = ["op_cost_table", "step_table"]

_MEANING = {
    PartKind.REGION.value: "region",
    PartKind.COLLECTIVE.value: "collective",
    PartKind.HOST.value: "host",
    "unexplained": "residual",
    "step": "whole",
}


def step_table(ledger: Ledger) -> Table:
    """Regions, collectives and host of a step, what none of them explains, and the step."""
    accounts = _accounts(ledger)
    return Table(
        name="step-parts",
        title="A decode step and its parts",
        columns=(
            Column("setting"),
            Column("part"),
            Column("kind"),
            Column("calls", True, "in one step"),
            Column("ms", True, "median over the measured steps; in this part and in no other"),
            Column("share", True, "of all measured steps; shares add up to the step"),
            Column("estimate ms", True, "of collectives by their line, of the step by its ops"),
        ),
        rows=tuple(
            _part_row(entry, account, line) for entry, account in accounts for line in account.lines
        ),
        note=" ".join(f"{entry.payload['setting']}: {one.sentence}." for entry, one in accounts),
        empty="no step was taken apart",
    )


def op_cost_table(ledger: Ledger) -> Table:
    """Every op of a step: measured, and what it should cost by roofline."""
    return Table(
        name="step-ops",
        title="Ops of a decode step beside their roofline",
        columns=(
            Column("setting"),
            Column("op"),
            Column("calls", True, "in one step"),
            Column("ms", True, "all calls of a step, median; host clock"),
            Column("estimate ms", True, "launch floor plus the longer of moving and computing"),
            Column("measured / estimate", True),
            Column("KiB", True, "read and written, by shapes"),
            Column("MFLOP", True, "by shapes"),
            Column("estimates are"),
        ),
        rows=tuple(
            _op_row(entry, op) for entry, account in _accounts(ledger) for op in account.ops
        ),
        note="An estimate that is not calibrated on this device explains nothing on it.",
        folded=True,
        empty="no op was estimated",
    )


def _accounts(ledger: Ledger) -> list[tuple[Entry, Account]]:
    return [(entry, account_of(entry.payload)) for entry in ledger.of_kind("step")]


def _part_row(entry: Entry, account: Account, line: Line) -> Row:
    link = Link(entry.anchor, entry.source)
    tone = Tone.DOUBT if line.kind == "unexplained" and _is_large(account) else Tone.PLAIN
    return Row(
        (
            text_cell(entry.payload["setting"], link),
            text_cell(line.name),
            text_cell(_MEANING.get(line.kind, line.kind)),
            number_cell(line.calls, None if line.calls is None else f"{line.calls:g}", link),
            number_cell(line.ms, f"{line.ms:.3f}", link),
            Cell(f"{line.share:.1%}", line.share, link, tone),
            _estimate_cell(line.estimate_ms, link),
        )
    )


def _is_large(account: Account) -> bool:
    """A residual that is larger than every part leaves the step unexplained."""
    parts = [line.share for line in account.lines if line.kind in {one.value for one in PartKind}]
    return account.unexplained_share > max(parts)


def _op_row(entry: Entry, op: OpLine) -> Row:
    link = Link(entry.anchor, entry.source)
    ratio = None if op.ms is None else op.ms / op.estimate_ms
    return Row(
        (
            text_cell(entry.payload["setting"], link),
            text_cell(op.name),
            number_cell(op.calls, str(op.calls), link),
            number_cell(op.ms, None if op.ms is None else f"{op.ms:.3f}", link),
            _estimate_cell(op.estimate_ms, link),
            number_cell(ratio, None if ratio is None else f"{ratio:.1f}", link),
            number_cell(op.num_bytes / 1024, f"{op.num_bytes / 1024:.1f}", link),
            number_cell(op.flops / 1e6, f"{op.flops / 1e6:.3f}", link),
            text_cell(entry.payload["calibration"]),
        )
    )


def _estimate_cell(estimate_ms: float | None, link: Link) -> Cell:
    if estimate_ms is None:
        return Cell(ABSENT, tone=Tone.MUTED)
    return Cell(f"{estimate_ms:.4f}", estimate_ms, link, Tone.MUTED)
