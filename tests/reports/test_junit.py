"""JUnit XML: counts that add up, and nothing red that looks skipped."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from reports.junit import to_junit
from reports.ledger import Entry, Ledger
from tests.reports.sample_run import record


def suites(ledger: Ledger) -> dict[str, ET.Element]:
    root = ET.fromstring(to_junit(ledger).encode())
    return {suite.get("name", ""): suite for suite in root}


def test_suites_count_what_they_hold(sample: Ledger) -> None:
    counts = {
        name: tuple(int(suite.get(key, "-1")) for key in ("tests", "failures", "errors", "skipped"))
        for name, suite in suites(sample).items()
    }
    assert counts == {
        "parity": (56, 4, 1, 1),
        "tokens": (9, 1, 1, 1),
        "sweep": (12, 1, 1, 1),
        "gate": (9, 2, 0, 4),
        "stage": (5, 2, 2, 0),
    }
    root = ET.fromstring(to_junit(sample).encode())
    assert [root.get(key) for key in ("tests", "failures", "errors", "skipped")] == [
        "91", "10", "5", "7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "status", "tag"),
    [
        ("parity", "OUT_OF_TOLERANCE", "failure"),
        ("parity", "UNSUPPORTED", "error"),
        ("parity", "SKIPPED", "skipped"),
        ("tokens", "DIVERGED", "failure"),
        ("tokens", "HANG", "error"),
        ("sweep", "PRUNED", "skipped"),
        ("sweep", "CRASHED", "error"),
        ("gate", "MISSING", "failure"),
    ],
)
def test_each_ending_has_its_element(sample: Ledger, kind: str, status: str, tag: str) -> None:
    key = next(item.key for item in sample.of_kind(kind) if item.payload["status"] == status)
    case = next(case for case in suites(sample)[kind] if case.get("name") == key)
    (outcome,) = case
    assert outcome.tag == tag
    assert outcome.get("message")
    assert f"record: {kind}.jsonl:" in (outcome.text or "")


def test_a_good_case_has_no_element_and_its_time(sample: Ledger) -> None:
    case = suites(sample)["parity"][0]
    assert list(case) == []
    assert float(case.get("time", "0")) > 0


def test_characters_that_xml_cannot_hold_are_spelt_out(sample: Ledger) -> None:
    old = sample.of_kind("parity")[1].payload
    bad = record("parity", "a\x00b\x1b[31m\ud800", {**old, "message": "x\x07y"})
    ledger = dataclasses.replace(sample, entries=(Entry(bad, "parity.jsonl", 1),))
    case = suites(ledger)["parity"][0]
    assert case.get("name") == r"a\u0000b\u001b[31m\ud800"
    assert case[0].get("message") == r"x\u0007y"
