"""TOML of suites/evaluations -> EvaluationTask. The format is described in suites/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.evaluation import EvaluationItem, EvaluationTask, StoredScore
from suites.toml_file import Table, read_toml

__all__ = ["read_evaluation"]


def read_evaluation(path: Path) -> EvaluationTask:
    """Read one file.

    Raises:
        InputError: unknown key, a value of the wrong type, or one that EvaluationTask refuses.
    """
    top = read_toml(path)
    fields: dict[str, Any] = {
        "name": path.stem,
        "description": top.one("description", str, ""),
        "items": tuple(_item(table) for table in top.tables("items")),
        "stored": tuple(_stored(table) for table in top.tables("stored")),
    }
    top.close()
    return top.build("", lambda: EvaluationTask(**fields))


def _item(table: Table) -> EvaluationItem:
    if not table.has("context") or not table.has("choices"):
        raise table.error("context", "absent", "an item has context and choices")
    choices = table.raw("choices")
    if not isinstance(choices, list):
        raise table.error("choices", choices, "must be a list of texts or of lists of ids")
    context = _content(table, "context", table.raw("context"))
    parsed = tuple(_content(table, "choices", choice) for choice in choices)
    answer = table.one("answer", int, 0)
    table.close()
    return table.build("", lambda: EvaluationItem(context, parsed, answer))


def _content(table: Table, key: str, value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(token) is int for token in value):
        return tuple(value)
    raise table.error(key, value, "must be a text or a list of token ids")


def _stored(table: Table) -> StoredScore:
    name = table.one("name", str)
    checkpoint_id = table.one("checkpoint_id", str, "")
    scores = table.table("scores")
    values = {key: scores.one(key, float) for key in scores.keys()}  # noqa: SIM118 a Table's keys
    table.close()
    return StoredScore(name, values, checkpoint_id)
