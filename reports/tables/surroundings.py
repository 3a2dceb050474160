"""What a run took and where it ran: stages, environment, and the list of records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reports.document import Column, Link, Row, Table
from reports.frame import rows_of
from reports.ledger import Entry, Ledger
from reports.tables.cells import link_of, number_cell, status_cell, text_cell

__all__ = ["environment_table", "flat_environment", "record_table", "stage_table"]

_MAX_LISTED_ITEMS = 8
_MAX_PAYLOAD_CHARACTERS = 1500
# A page of thousands of records stays small; the files on disk have everything anyway.
_MANY_RECORDS, _MAX_SHORT_CHARACTERS = 400, 240
# What explains a failure is worth more room than what explains a success.
_MAX_DETAIL_CHARACTERS = 6000


def stage_table(ledger: Ledger) -> Table:
    """Wall time and status of each stage."""
    entries, rows = ledger.of_kind("stage"), rows_of(ledger, "stage")
    return Table(
        name="stages",
        title="Stages",
        columns=(
            Column("stage"),
            Column("status"),
            Column("seconds", numeric=True),
            Column("message"),
        ),
        rows=tuple(
            Row(
                (
                    text_cell(row["name"], link_of(row)),
                    status_cell(entry),
                    number_cell(
                        row["elapsed_s"],
                        None if row["elapsed_s"] is None else f"{row['elapsed_s']:.2f}",
                        link_of(row),
                    ),
                    text_cell(row["message"]),
                )
            )
            for entry, row in zip(entries, rows, strict=True)
        ),
        empty="no stage was recorded",
    )


def flat_environment(environment: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted names, values as text, in order of name."""
    flat: dict[str, str] = {}
    for name in sorted(environment):
        value = environment[name]
        if isinstance(value, Mapping):
            flat |= flat_environment(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = "not known" if value is None else str(value)
    return flat


def environment_table(ledger: Ledger) -> Table:
    """The fingerprint; values in which records of this run differ are all listed."""
    values: dict[str, dict[str, None]] = {}
    seen: list[Mapping[str, Any]] = []
    for environment in (ledger.environment, *(item.record.environment for item in ledger.entries)):
        if environment in seen:
            continue
        seen.append(environment)
        for name, value in flat_environment(environment).items():
            values.setdefault(name, {})[value] = None
    return Table(
        name="environment",
        title="Environment",
        columns=(Column("what"), Column("value")),
        rows=tuple(
            Row((text_cell(name), text_cell(" | ".join(found)))) for name, found in values.items()
        ),
        note="" if len(seen) <= 1 else f"The records name {len(seen)} environments.",
        empty="the run does not say where it ran",
    )


def record_table(ledger: Ledger) -> Table:
    """Every record with its place on disk; long lists are cut, the file has them whole."""
    many = len(ledger.entries) > _MANY_RECORDS
    limit = _MAX_SHORT_CHARACTERS if many else _MAX_PAYLOAD_CHARACTERS
    return Table(
        name="records",
        title=f"All {len(ledger.entries)} records",
        columns=(
            Column("kind"),
            Column("key"),
            Column("on disk"),
            Column("written"),
            Column("payload"),
        ),
        rows=tuple(_record_row(entry, limit) for entry in ledger.entries),
        note="Every number links here. Lists are shortened; the file has them whole.",
        folded=True,
    )


def _record_row(entry: Entry, limit: int) -> Row:
    return Row(
        (
            text_cell(entry.record.kind),
            text_cell(entry.key),
            text_cell(entry.source, Link(entry.anchor, entry.source)),
            text_cell(entry.record.created),
            text_cell(_excerpt(entry, limit)),
        ),
        anchor=entry.anchor,
    )


def _excerpt(entry: Entry, limit: int) -> str:
    body = {name: value for name, value in entry.payload.items() if name != "warmups"}
    text = json.dumps(_shortened(body), ensure_ascii=False, sort_keys=True)
    if entry.payload.get("detail"):
        limit = _MAX_DETAIL_CHARACTERS
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more)"


def _shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        if len(value) > _MAX_LISTED_ITEMS:
            kept = value[: _MAX_LISTED_ITEMS // 2]
            return [*map(_shortened, kept), f"… {len(value) - len(kept)} more"]
        return [_shortened(item) for item in value]
    return value
