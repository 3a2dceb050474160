"""A run as JUnit XML: what CI systems read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from harness.core.errors import ExitCode
from harness.core.record import KINDS
from reports.ledger import Entry, Ledger
from reports.verdict import entry_exit_code

__all__ = ["to_junit"]

_ERRORS = (ExitCode.RANK, ExitCode.USAGE, ExitCode.CANNOT_JUDGE, ExitCode.INTERNAL)
# What was left out by plan; everything else that is not green must not look skipped.
_SKIPPED = ("SKIPPED", "PRUNED")
_SUITES = tuple(kind for kind in KINDS if kind not in ("metric", "plan"))
# Control characters that XML 1.0 cannot hold, not even as references.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(ledger: Ledger) -> str:
    """One suite a kind, one test case a record; what could not be judged is an error."""
    root = ET.Element("testsuites", {"name": _clean(f"neuron-harness {ledger.run_id}")})
    for kind in _SUITES:
        entries = ledger.of_kind(kind)
        if entries:
            root.append(_suite(kind, entries))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _suite(kind: str, entries: Sequence[Entry]) -> ET.Element:
    suite = ET.Element("testsuite", {"name": kind, "timestamp": _clean(entries[0].record.created)})
    cases = [_case(kind, entry) for entry in entries]
    suite.extend(cases)
    suite.set("tests", str(len(cases)))
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
    return suite


def _case(kind: str, entry: Entry) -> ET.Element:
    payload = entry.payload
    group = payload.get("op") or payload.get("candidate") or ""
    case = ET.Element(
        "testcase",
        {
            "classname": _clean(f"{kind}.{group}" if group else kind),
            "name": _clean(entry.key),
            "time": f"{_seconds(entry):.3f}",
        },
    )
    tag = _tag(entry)
    if tag is not None:
        message = _clean(str(payload.get("message") or payload["status"]))
        outcome = ET.SubElement(case, tag, {"message": message})
        if tag != "skipped":
            outcome.set("type", _clean(str(payload["status"])))
        detail = payload.get("detail") or ""
        outcome.text = _clean(f"{detail}\nrecord: {entry.source}".strip())
    return case


def _tag(entry: Entry) -> str | None:
    """The element that says how a record ended; None for a good one."""
    code, status = entry_exit_code(entry), entry.payload["status"]
    if status in _SKIPPED or code is None:
        return "skipped"
    if code is ExitCode.PASS:
        return None
    return "error" if code in _ERRORS else "failure"


def _seconds(entry: Entry) -> float:
    elapsed_s = entry.payload.get("elapsed_s")
    if isinstance(elapsed_s, (int, float)):
        return float(elapsed_s)
    return sum(entry.payload.get("elapsed_ms") or ()) / 1e3


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
