"""Token match in words: "short 8/9, near tie at 8; long 9/9", split by phase."""

from __future__ import annotations

import pytest

from reports.frame import rows_of
from reports.ledger import Ledger
from reports.tables.tokens import match_text, pair_table, phase_texts, prompt_table


def test_one_line_a_pair_quotes_prefix_and_near_tie(sample: Ledger) -> None:
    lines = {
        (row.cells[0].text, row.cells[1].text): (row.cells[3].text, row.cells[4].text)
        for row in pair_table(sample).rows
    }
    assert lines[("fast cp=1 ops=kernels", "fast cp=1 ops=references")] == (
        "NEAR_TIE",
        "short 8/9, near tie at 8; long 9/9",
    )
    assert lines[("exact cp=2 ops=references", "exact cp=1 ops=references")] == (
        "MATCH",
        "short 9/9; long 32/32",
    )
    assert lines[("exact cp=8 ops=references", "exact cp=1 ops=references")][0] == "HANG"


@pytest.mark.parametrize(
    ("positions", "prefill", "decode"),
    [
        ((), "–", "–"),
        (("MATCH",), "match", "–"),
        (("DIVERGED", "MATCH", "MATCH"), "diverged", "2/2 match"),
        (("MATCH", "NEAR_TIE", "MATCH"), "match", "1/2 match, 1 near tie"),
        (("MATCH", "MATCH", "DIVERGED"), "match", "1/2 match, 1 diverged"),
    ],
)
def test_token_zero_is_prefill_and_the_rest_decode(
    positions: tuple[str, ...], prefill: str, decode: str
) -> None:
    assert phase_texts(positions) == (prefill, decode)


def test_a_divergence_names_its_first_position_only(sample: Ledger) -> None:
    row = next(row for row in rows_of(sample, "tokens") if row["status"] == "DIVERGED")
    assert match_text(row) == "4/9, diverged at 4"


def test_a_near_tie_under_forcing_alone_is_placed_too(sample: Ledger) -> None:
    row = {**rows_of(sample, "tokens")[4], "prefix_length": 9, "first_divergence": None}
    assert match_text(row) == "9/9, near tie at 8"


def test_prompts_carry_forced_numbers_and_link_to_their_record(sample: Ledger) -> None:
    table = prompt_table(sample)
    column = [item.title for item in table.columns].index("forced top-1")
    near = table.rows[4].cells
    assert near[column].text == "88.9%"
    assert near[column].link is not None
    assert near[column].link.source == "tokens.jsonl:5"
    assert len(table.rows) == 9
