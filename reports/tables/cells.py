"""How values are written in a cell. Text is for reading, `sort` keeps the exact value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.document import ABSENT, Cell, Link, Tone
from reports.interval import Interval
from reports.ledger import Entry
from reports.verdict import entry_exit_code, tone_of

__all__ = [
    "interval_cell",
    "link_of",
    "milliseconds",
    "number_cell",
    "scientific",
    "status_cell",
    "text_cell",
]

_THIN_SPACE = "\u202f"


def link_of(row: Mapping[str, Any]) -> Link:
    """The record a frame's row was read from."""
    return Link(row["anchor"], row["source"])


def milliseconds(value: float) -> str:
    """Three significant digits or whole numbers, thousands set apart."""
    if value >= 100:
        return f"{value:,.0f}".replace(",", _THIN_SPACE)
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def scientific(value: float) -> str:
    """Short: 0.0031, 3.1e-12, 24."""
    return f"{value:.3g}"


def number_cell(value: float | None, text: str | None = None, link: Link | None = None) -> Cell:
    """A number; a dash where nothing was measured."""
    if value is None:
        return Cell(ABSENT, tone=Tone.MUTED)
    return Cell(scientific(value) if text is None else text, float(value), link)


def text_cell(text: object, link: Link | None = None, title: str = "") -> Cell:
    """A text, sorted as such; a dash where there is none."""
    words = "" if text is None else str(text)
    return Cell(words, words, link, title=title) if words else Cell(ABSENT, tone=Tone.MUTED)


def interval_cell(interval: Interval | None, link: Link) -> Cell:
    """ "72.1 [70.0, 74.4]", sorted by the median."""
    if interval is None:
        return Cell(ABSENT, tone=Tone.MUTED)
    text = milliseconds(interval.median)
    if interval.count > 1:
        text += f" [{milliseconds(interval.low)}, {milliseconds(interval.high)}]"
    return Cell(text, interval.median, link, title=interval.method)


def status_cell(entry: Entry) -> Cell:
    """The status of a record in its tone, linked to it."""
    status = str(entry.payload["status"])
    tone = tone_of(entry_exit_code(entry))
    return Cell(status, status, Link(entry.anchor, entry.source), tone)
