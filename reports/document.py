"""What a report says, before it is Markdown or HTML: sections of tables and figures.

Both renderings are made from this one value, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

__all__ = [
    "ABSENT",
    "Cell",
    "Column",
    "Document",
    "Figure",
    "Link",
    "Row",
    "Section",
    "Table",
    "Tile",
    "Tone",
]

# What stands in a cell for which nothing was measured or said.
ABSENT = "–"


class Tone(Enum):
    """How a value is to be taken. Each has a word or a sign beside its colour."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    DOUBT = "doubt"
    MUTED = "muted"


class Link(NamedTuple):
    """Where a number comes from: a record, by its id in the document and its place on disk."""

    anchor: str
    source: str


class Cell(NamedTuple):
    """One value of a table.

    Attributes:
        sort: what the column sorts by; None sorts last.
        link: the record it was read from.
        title: a longer text for a tooltip.
    """

    text: str
    sort: float | str | None = None
    link: Link | None = None
    tone: Tone = Tone.PLAIN
    title: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head. Numeric columns are set flush right."""

    title: str
    numeric: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `anchor` is the id by which other parts of the document point here."""

    cells: tuple[Cell, ...]
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption.

    Attributes:
        folded: shown closed at first; for long tables behind a summary.
        empty: what stands in place of a table without rows.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    folded: bool = False
    empty: str = "no record"

    def without_empty_columns(self) -> Table:
        """The same table less the columns in which no row says anything."""
        kept = [
            place
            for place in range(len(self.columns))
            if any(row.cells[place].text not in ("", ABSENT) for row in self.rows)
        ]
        rows = [Row(tuple(row.cells[place] for place in kept), row.anchor) for row in self.rows]
        if not rows:
            return self
        columns = tuple(self.columns[place] for place in kept)
        return replace(self, columns=columns, rows=tuple(rows))

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"table {self.name}: {len(row.cells)} cells under {len(self.columns)} columns"
                )


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot as SVG text, with the sentence that says what is drawn."""

    name: str
    title: str
    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands under it, figures before tables."""

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the headline: "50/56", what it counts, and where to read on."""

    value: str
    label: str
    detail: str
    tone: Tone
    section: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report.

    Attributes:
        verdict: one or two words.
        sentence: the verdict in one sentence.
        facts: (label, text) pairs under the headline: run, command, start.
        notices: what the reader must know about the records themselves.
    """

    title: str
    verdict: str
    tone: Tone
    sentence: str
    facts: tuple[tuple[str, str], ...]
    tiles: tuple[Tile, ...]
    notices: tuple[str, ...]
    sections: tuple[Section, ...]
