"""What was shown where, and what is red: the two tables under the headline."""

from __future__ import annotations

from harness.core.errors import ExitCode
from reports.document import Cell, Column, Link, Row, Table, Tone
from reports.ledger import Entry, Ledger
from reports.origin import Origin, origin_of
from reports.tables.cells import status_cell, text_cell
from reports.verdict import AREAS, entry_exit_code, tone_of

__all__ = ["attention_table", "shown_where_table", "worst_first"]

MAX_ATTENTION_ROWS = 25

_SEVERITY = (
    ExitCode.INTERNAL,
    ExitCode.RANK,
    ExitCode.USAGE,
    ExitCode.MISMATCH,
    ExitCode.VACUOUS,
    ExitCode.CANNOT_JUDGE,
    ExitCode.INTERRUPTED,
)
# What runs kernels or a model, and so ran somewhere.
_EXECUTED = ("parity", "tokens", "sweep")


def shown_where_table(ledger: Ledger) -> Table:
    """Good and judged records per kind and state. An empty state says "not shown"."""
    found = {origin_of(entry) for kind in _EXECUTED for entry in ledger.of_kind(kind)}
    states = [Origin.CPU, Origin.SIMULATOR, Origin.DEVICE]
    states += [state for state in (Origin.STAND_IN, Origin.UNSTATED) if state in found]
    rows = [
        Row((text_cell(AREAS[kind]), *(_state_cell(ledger, kind, state) for state in states)))
        for kind in _EXECUTED
    ]
    return Table(
        name="shown-where",
        title="What was shown where",
        columns=(Column("evidence"), *(Column(state.value) for state in states)),
        rows=tuple(rows),
        note="CPU is torch on the host and the bundled NKI interpreter. What is shown in one "
        "column says nothing about another; a stand-in shows how the code talks to a device, never "
        "what a device answers.",
    )


def _state_cell(ledger: Ledger, kind: str, state: Origin) -> Cell:
    judged = [
        (code, entry)
        for entry in ledger.of_kind(kind)
        if origin_of(entry) is state and (code := entry_exit_code(entry)) is not None
    ]
    if not judged:
        return Cell("not shown", -1.0, tone=Tone.MUTED)
    good = sum(code is ExitCode.PASS for code, _ in judged)
    worst, entry = min(judged, key=lambda item: _rank(item[0]))
    text = f"{good} of {len(judged)}"
    return Cell(text, good / len(judged), Link(entry.anchor, entry.source), tone_of(worst))


def worst_first(ledger: Ledger) -> list[Entry]:
    """The records that count and are not green, the gravest first, else in ledger order."""
    red = [item for item in ledger.entries if entry_exit_code(item) not in (None, ExitCode.PASS)]
    return sorted(red, key=lambda entry: _rank(entry_exit_code(entry)))


def attention_table(ledger: Ledger, limit: int | None = MAX_ATTENTION_ROWS) -> Table:
    """Everything that is not green and counts, worst first, or the worst `limit` lines of it.

    Records of one kind with one status and one message share a line, named by the first.
    """
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in worst_first(ledger):
        payload = entry.payload
        key = (entry.record.kind, str(payload["status"]), str(payload.get("message", "")))
        groups.setdefault(key, []).append(entry)
    alike = list(groups.values())
    note = ""
    if limit is not None and len(alike) > limit:
        note = f"The worst {limit} of {len(alike)} lines; the others stand in their sections."
    return Table(
        name="attention",
        title="Needs attention, worst first",
        columns=(Column("status"), Column("kind"), Column("record"), Column("what is wrong")),
        rows=tuple(_attention_row(entries) for entries in alike[:limit]),
        note=note,
        empty="nothing: every record that counts is good",
    )


def _attention_row(entries: list[Entry]) -> Row:
    entry = entries[0]
    kind = entry.record.kind
    name = _record_name(entry)
    if len(entries) > 1:
        name += f" and {len(entries) - 1} more like it"
    return Row(
        (
            status_cell(entry),
            text_cell(AREAS.get(kind, kind).replace(" ", "\u00a0")),
            text_cell(name, Link(entry.anchor, entry.source)),
            text_cell(entry.payload.get("message", "")),
        )
    )


def _record_name(entry: Entry) -> str:
    payload = entry.payload
    if entry.record.kind == "tokens":
        return f"{payload['prompt']}: {payload['candidate']} against {payload['oracle']}"
    if entry.record.kind == "sweep":
        config = payload["config"]
        axes = ("input_len", "cp", "ep", "concurrency", "numerics")
        named = [f"{axis}={config[axis]}" for axis in axes if config.get(axis)]
        return " ".join(named) or entry.key
    return entry.key


def _rank(code: ExitCode | None) -> int:
    return _SEVERITY.index(code) if code in _SEVERITY else len(_SEVERITY)
