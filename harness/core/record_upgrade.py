"""Records of older schemas as today's readers expect them: one step a version, in order.

A step takes the whole line (envelope and payload) of version n and returns one of version n + 1.
It must not invent: what an old record does not say becomes None. Fields it does not know stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["SCHEMA_VERSION", "upgraded"]

SCHEMA_VERSION = 2

Body = dict[str, Any]


def upgraded(body: Mapping[str, Any]) -> Body:
    """The line at SCHEMA_VERSION; `body["schema"]` is within 1..SCHEMA_VERSION.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not what its version says.
    """
    line = dict(body)
    while line["schema"] < SCHEMA_VERSION:
        line = {**_STEPS[line["schema"]](line), "schema": line["schema"] + 1}
    return line


def _one_to_two(line: Body) -> Body:
    """Token verdicts name the first position that does not match, by logits or by ids.

    Version 1 named only the first id that differs (`first_divergence`). Where ranks failed it did
    not say how far they came.
    """
    if line.get("kind") != "tokens":
        return line
    payload = dict(line["payload"])
    changed = (
        position for position, status in enumerate(payload["positions"]) if status != "MATCH"
    )
    payload.setdefault("first_changed", next(changed, payload.get("first_divergence")))
    return {**line, "payload": payload}


_STEPS: dict[int, Callable[[Body], Body]] = {1: _one_to_two}
