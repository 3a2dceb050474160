"""Which axes of a sweep tell its points apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["AXIS_TITLES", "NUMERIC_AXES", "SWEEP_AXES", "point_name", "telling_axes"]

# In the order of a table's columns.
SWEEP_AXES = ("input_len", "output_len", "cp", "ep", "concurrency", "numerics", "ops", "prefill")
NUMERIC_AXES = ("input_len", "output_len", "cp", "ep", "concurrency")
AXIS_TITLES = {axis: axis for axis in SWEEP_AXES} | {"input_len": "input", "output_len": "output"}


def telling_axes(
    rows: Sequence[dict[str, Any]], *, but: Sequence[str] = (), axes: Sequence[str] = SWEEP_AXES
) -> list[str]:
    """The axes in which rows differ; ep is left out where it just follows cp."""
    telling = [axis for axis in axes if axis not in but and len({row[axis] for row in rows}) > 1]
    if "ep" in telling and all(row["ep"] == row["cp"] for row in rows):
        telling.remove("ep")
    return telling


def point_name(row: dict[str, Any], axes: Sequence[str]) -> str:
    """ "cp=2 fast": a point or a line by the axes that tell it apart."""
    bare = ("numerics", "origin", "run")
    return " ".join(
        str(row[axis]) if axis in bare else f"{AXIS_TITLES.get(axis, axis)}={row[axis]}"
        for axis in axes
    )
