"""Markdown that says what the text says, whatever the text holds."""

from __future__ import annotations

import pytest

from reports.document import Cell, Column, Link, Row, Table
from reports.markdown import escape, table_lines


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("rms_norm/T4-d512", "rms_norm/T4-d512"),
        ("_emphasis_ *too*", r"\_emphasis\_ \*too\*"),
        ("a | b", r"a \| b"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("[x](y) `code`", r"\[x\](y) \`code\`"),
        ("two\nlines\tand\u2028more", "two lines and more"),
        ("a & b", "a &amp; b"),
    ],
)
def test_every_sign_with_a_meaning_is_escaped(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def table(folded: bool = False) -> Table:
    cell = Cell("4.2", 4.2, Link("r1", "parity.jsonl:7"))
    return Table(
        "t",
        "A <title>",
        (Column("op"), Column("ratio", numeric=True)),
        (Row((Cell("x|y"), cell)),),
        folded=folded,
    )


def test_numbers_link_to_their_line_where_records_are_at_hand() -> None:
    lines = list(table_lines(table(), "runs/a"))
    assert lines[2:5] == [
        "| op | ratio |",
        "|---|---:|",
        r"| x\|y | [4.2](runs/a/parity.jsonl#L7) |",
    ]
    assert r"| x\|y | 4.2 |" in list(table_lines(table(), None))


def test_a_folded_table_is_closed_again() -> None:
    text = "\n".join(table_lines(table(folded=True)))
    assert text.startswith("<details><summary>A &lt;title&gt;</summary>")
    assert text.rstrip().endswith("</details>")


def test_a_table_refuses_rows_of_another_width() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 columns"):
        Table("t", "t", (Column("a"), Column("b")), (Row((Cell("x"),)),))
