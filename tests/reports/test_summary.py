"""The step summary of a GitHub job and its annotations."""

from __future__ import annotations

import dataclasses

from reports.ledger import Entry, Ledger
from reports.summary import MAX_SUMMARY_BYTES, annotation_lines, to_step_summary
from tests.reports.sample_names import MARKUP
from tests.reports.sample_run import record


def many_red(sample: Ledger, count: int, message: str) -> Ledger:
    old = next(item for item in sample.of_kind("parity") if item.payload["status"] == "RUN_ERROR")
    entries = tuple(
        Entry(
            record("parity", f"op/{place}", {**old.payload, "message": f"{message} {place}"}),
            "parity.jsonl",
            place + 1,
        )
        for place in range(count)
    )
    return dataclasses.replace(sample, entries=entries)


def test_the_worst_stands_first(sample: Ledger) -> None:
    text = to_step_summary(sample)
    assert text.startswith("## RANK LOST: ")
    order = [text.index(f"\n| {word} ") for word in ("HANG", "TIMEOUT", "UNSUPPORTED")]
    assert order == sorted(order)
    assert "short 8/9, near tie at 8; long 9/9" in text


def test_a_summary_beyond_one_mebibyte_is_cut_at_a_line_with_a_notice(sample: Ledger) -> None:
    text = to_step_summary(many_red(sample, 4000, "é" * 400))
    assert len(text.encode()) <= MAX_SUMMARY_BYTES < 1024 * 1024
    assert text.rstrip().endswith("The report of the run has everything.*")
    rows = [line for line in text.splitlines() if line.startswith("| RUN")]
    assert len(rows) > 1000
    assert all(line.endswith("|") for line in rows)


def test_annotations_are_limited_and_the_rest_is_counted(sample: Ledger) -> None:
    lines = annotation_lines(many_red(sample, 30, "x"))
    assert len(lines) == 11
    assert lines[-1] == "::notice title=neuron-harness::20 more in the step summary"


def test_a_message_cannot_start_another_command(sample: Ledger) -> None:
    (line,) = annotation_lines(many_red(sample, 1, "100%\n::error::fake\r\n" + MARKUP))
    assert "\n" not in line
    assert line.startswith("::error title=RUN_ERROR parity op/0::100%25%0A::error::fake%0D%0A")


def test_a_title_cannot_end_early(sample: Ledger) -> None:
    old = sample.of_kind("parity")[1]
    entry = Entry(record("parity", "a,file=b::c", old.payload), "x", 1)
    (line,) = annotation_lines(dataclasses.replace(sample, entries=(entry,)))
    assert line.startswith("::warning title=SKIPPED parity a%2Cfile=b%3A%3Ac::")


def test_a_green_run_annotates_nothing(green: Ledger) -> None:
    assert annotation_lines(green) == []
    assert "nothing: every record that counts is good" in to_step_summary(green)
