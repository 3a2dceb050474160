"""A part of a run's records, by kind, status, key and the columns of their frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from harness.core.errors import UsageError
from harness.core.record import KINDS
from harness.core.suggest import near_names
from reports.frame import rows_of
from reports.ledger import Entry, Ledger

__all__ = ["Selection", "select"]


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What to keep; an empty field keeps everything.

    Attributes:
        kinds: of KINDS.
        statuses: exact, in any case of letters.
        key: shell pattern of the record's key.
        where: (column, text) pairs, all of which must hold: the column's value as text.
    """

    kinds: Sequence[str] = ()
    statuses: Sequence[str] = ()
    key: str = ""
    where: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise UsageError(f"record kind {kind!r} is not known{near_names(kind, KINDS)}")


def select(ledger: Ledger, selection: Selection) -> Ledger:
    """The ledger with the records that the selection keeps, in their order.

    Raises:
        UsageError: no kept kind has a column of that name.
    """
    kept = [
        entry for kind in selection.kinds or KINDS for entry in _matching(ledger, kind, selection)
    ]
    _check_columns(ledger, selection)
    return dataclasses.replace(ledger, entries=tuple(kept))


def _matching(ledger: Ledger, kind: str, selection: Selection) -> Iterable[Entry]:
    statuses = {status.upper() for status in selection.statuses}
    for entry, row in zip(ledger.of_kind(kind), rows_of(ledger, kind), strict=True):
        if statuses and str(entry.payload.get("status", "")).upper() not in statuses:
            continue
        if selection.key and not fnmatchcase(entry.key, selection.key):
            continue
        if all(_holds(row, column, text) for column, text in selection.where):
            yield entry


def _holds(row: dict[str, Any], column: str, text: str) -> bool:
    return column in row and str(row[column]) == text


def _check_columns(ledger: Ledger, selection: Selection) -> None:
    known = {
        column
        for kind in selection.kinds or KINDS
        for row in rows_of(ledger, kind)[:1]
        for column in row
    }
    for column, _ in selection.where:
        if known and column not in known:
            raise UsageError(f"column {column!r} is not known{near_names(column, known)}")
