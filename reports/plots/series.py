"""Points of a sweep as lines: which axis tells them apart, in which colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reports.axes import SWEEP_AXES, point_name, telling_axes
from reports.plots.style import MARKERS, PALETTE

__all__ = ["MAX_SERIES", "Series", "cut_note", "series_of"]

MAX_SERIES = len(PALETTE)


@dataclass(frozen=True, slots=True)
class Series:
    """Points that differ only along the plot's own axis.

    Attributes:
        points: in order along that axis.
    """

    label: str
    colour: str
    marker: str
    points: tuple[dict[str, Any], ...]


def series_of(rows: Sequence[dict[str, Any]], along: str) -> list[Series]:
    """Split rows by every other axis in which they differ, the state they were shown in among
    them, so that a CPU line never runs on into a device line. Rows of several runs say which in
    "run"."""
    several_runs = ("run",) if rows and "run" in rows[0] else ()
    telling = telling_axes(rows, but=(along,), axes=(*SWEEP_AXES, "origin", *several_runs))
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row[along] is not None:
            groups.setdefault(tuple(row[axis] for axis in telling), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: [_sortable(part) for part in item[0]])
    return [
        Series(
            label=point_name(group[0], telling),
            colour=PALETTE[place % MAX_SERIES],
            marker=MARKERS[place % MAX_SERIES],
            points=tuple(sorted(group, key=lambda row: row[along])),
        )
        for place, (_, group) in enumerate(ordered)
    ]


def cut_note(series: Sequence[Series]) -> str:
    """What a caption says where more lines exist than can be told apart."""
    if len(series) <= MAX_SERIES:
        return ""
    return f" Drawn: the first {MAX_SERIES} of {len(series)} lines; the table has all."


def _sortable(value: Any) -> tuple[int, float, str]:
    """Numbers before texts, numbers by value."""
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    return 1, 0.0, str(value)
