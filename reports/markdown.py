"""A document as GitHub-flavoured Markdown; figures stand beside it as SVG files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

from reports.document import Cell, Document, Row, Section, Table

__all__ = ["PLOT_FOLDER", "escape", "table_lines", "to_markdown"]

PLOT_FOLDER = "plots"
# Long lists whose every line stands in the records: a reader of Markdown has the files beside.
_ONLY_IN_HTML = ("records", "metrics", "gate-verdicts")


def to_markdown(document: Document, *, records_at: str | None = "") -> str:
    """Render; every name is escaped.

    Args:
        records_at: path from the Markdown file to the run directory, "" where they are one, None
            where the reader has no records to open.
    """
    lines = [
        f"# {document.verdict}: {escape(document.title)}",
        "",
        escape(document.sentence),
        "",
    ]
    if document.tiles:
        lines += ["| what | result | how it ended |", "|---|---:|---|"]
        lines += [
            f"| {escape(tile.label)} | {escape(tile.value)} | {escape(tile.detail)} |"
            for tile in document.tiles
        ]
        lines.append("")
    lines += [f"* {escape(label)}: {escape(text)}" for label, text in document.facts]
    lines.append("")
    if document.notices:
        lines += [f"> {escape(notice)}" for notice in document.notices]
        lines.append("")
    for section in document.sections:
        lines += _section_lines(section, records_at)
    return "\n".join(lines).rstrip() + "\n"


def _section_lines(section: Section, records_at: str | None) -> Iterator[str]:
    yield from (f"## {escape(section.title)}", "")
    for paragraph in section.paragraphs:
        yield from (escape(paragraph), "")
    for figure in section.figures:
        title = escape(figure.title)
        yield from (f"![{title}]({PLOT_FOLDER}/{figure.name}.svg)", "")
        yield from (f"*{title}.* {escape(figure.caption)}", "")
    for table in section.tables:
        if table.name in _ONLY_IN_HTML:
            yield from (f"*{escape(table.title)}: in report.html.*", "")
        else:
            yield from table_lines(table, records_at)


def table_lines(table: Table, records_at: str | None = None) -> Iterator[str]:
    """A table under its title; a folded one in a <details> element."""
    title = escape(table.title)
    folded = table.folded and bool(table.rows)
    yield from (f"<details><summary>{title}</summary>" if folded else f"### {title}", "")
    if table.rows:
        yield "| " + " | ".join(escape(column.title) for column in table.columns) + " |"
        yield "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
        for row in table.rows:
            yield _row_line(row, records_at)
    else:
        yield f"*{escape(table.empty)}*"
    yield ""
    if table.note:
        yield from (escape(table.note), "")
    if folded:
        yield from ("</details>", "")


def _row_line(row: Row, records_at: str | None) -> str:
    return "| " + " | ".join(_cell_text(cell, records_at) for cell in row.cells) + " |"


def _cell_text(cell: Cell, records_at: str | None) -> str:
    text = escape(cell.text)
    if cell.link is None or records_at is None or not text:
        return text
    file, _, line = cell.link.source.rpartition(":")
    folder = f"{quote(records_at)}/" if records_at else ""
    return f"[{text}]({folder}{quote(file)}#L{line})"


def escape(text: str) -> str:
    """Text that Markdown and the HTML within it leave as it is, on one line."""
    text = re.sub(r"\s+", " ", text).strip(" ")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|~$])", r"\\\1", text)
    # Within a word an underscore is plain text to GitHub; rms_norm stays readable in the source.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)
