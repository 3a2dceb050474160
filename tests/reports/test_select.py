"""Filters of records."""

from __future__ import annotations

import pytest

from harness.core.errors import UsageError
from reports.ledger import Ledger
from reports.select import Selection, select


def keys(ledger: Ledger, selection: Selection) -> list[str]:
    return [entry.key for entry in select(ledger, selection).entries]


def test_nothing_asked_keeps_everything_in_order(sample: Ledger) -> None:
    assert keys(sample, Selection()) == [entry.key for entry in sample.entries]


def test_kind_status_key_and_columns_all_must_hold(sample: Ledger) -> None:
    found = Selection(["parity"], ["pass"], "rms_norm/*", [("backend", "interpret")])
    assert len(keys(sample, found)) == 7
    assert keys(sample, Selection(where=[("op", "swiglu")], statuses=["TIMEOUT"])) == [
        "swiglu/T128-d512/bfloat16/zero_block/s7"
    ]
    assert keys(sample, Selection(["gate"], ["HANG"])) == []


def test_unknown_kinds_and_columns_get_near_names(sample: Ledger) -> None:
    with pytest.raises(UsageError, match="did you mean parity"):
        Selection(["parity2"])
    with pytest.raises(UsageError, match="did you mean prompt"):
        select(sample, Selection(["tokens"], where=[("promt", "short")]))
