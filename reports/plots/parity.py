"""How much of its budget each case uses, and which cases did not pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reports.document import Figure
from reports.plots.style import (
    GRID,
    INK,
    PALETTE,
    PAPER,
    blank,
    log_axis,
    record_urls,
    to_svg,
    tune,
)

__all__ = ["budget_figure", "case_map_figure"]

_GREEN, _RED, _AMBER = PALETTE[2], PALETTE[5], PALETTE[1]
# Zero error has no place on a logarithmic axis; it is drawn at this ratio and called so.
_SMALLEST_RATIO = 1e-4
_SIGNS = {"PASS": "", "OUT_OF_TOLERANCE": "≠", "SKIPPED": "–", "UNSUPPORTED": "–", "VACUOUS": "∅"}
_MAX_CASES_ACROSS = 64


def budget_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """Budget ratio of every compared case by op, with its histogram; None without any."""
    compared = [row for row in rows if row["budget_ratio"] is not None]
    if not compared:
        return None
    ops = list(dict.fromkeys(row["op"] for row in compared))
    height_in = 1.1 + 0.27 * len(ops)
    with blank("budget", height_in=max(2.6, height_in), widths=(2.2, 1.0)) as (canvas, pair):
        _draw_strips(pair[0], compared, ops)
        _draw_histogram(pair[1], compared)
        svg = to_svg(canvas, "budget")
    return Figure(
        name="budget",
        title="Share of the error budget in use",
        svg=svg,
        caption="Worst slice's error over its budget, one mark a case; right of the line is out "
        f"of tolerance. No error at all is drawn at {_SMALLEST_RATIO:g}.",
    )


def _ratio(row: dict[str, Any]) -> float:
    return max(float(row["budget_ratio"]), _SMALLEST_RATIO)


def _draw_strips(axes: Axes, rows: Sequence[dict[str, Any]], ops: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for colour, group in (
        (_GREEN, [row for row in rows if row["budget_ratio"] <= 1]),
        (_RED, [row for row in rows if row["budget_ratio"] > 1]),
    ):
        heights = []
        for row in group:
            place = seen[row["op"]] = seen.get(row["op"], -1) + 1
            heights.append(ops.index(row["op"]) + 0.11 * ((place % 5) - 2))
        marks = axes.scatter(
            [_ratio(row) for row in group],
            heights,
            s=26,
            color=colour,
            marker="o" if colour == _GREEN else "X",
            edgecolor=PAPER,
            linewidth=0.6,
        )
        marks.set_urls(record_urls(group))
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log")
    log_axis(axes.xaxis)
    axes.set_yticks(range(len(ops)), ops)
    axes.set_ylim(len(ops) - 0.4, -0.6)
    tune(axes, x_label="error / budget", y_label="")


def _draw_histogram(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    ratios = np.array([_ratio(row) for row in rows])
    low = min(-2.0, np.floor(np.log10(ratios.min())))
    high = max(0.5, np.ceil(np.log10(ratios.max())))
    edges = np.logspace(low, high, 19)
    axes.hist(ratios, bins=list(edges), color=PALETTE[0], edgecolor=PAPER, linewidth=0.6)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log")
    log_axis(axes.xaxis)
    tune(axes, x_label="error / budget", y_label="cases")


def case_map_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """One square a case, one row an op; None without a case."""
    if not rows:
        return None
    by_op: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_op.setdefault(row["op"], []).append(row)
    across = min(_MAX_CASES_ACROSS, max(len(group) for group in by_op.values()))
    lines = [
        (op if start == 0 else "", group[start : start + across])
        for op, group in by_op.items()
        for start in range(0, len(group), across)
    ]
    with blank("case-map", height_in=0.5 + 0.27 * len(lines)) as (canvas, (axes,)):
        for down, (_, group) in enumerate(lines):
            for place, row in enumerate(group):
                _draw_case(axes, place, down, row)
        axes.set_xlim(-0.6, max(across, 24) - 0.4)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks(range(len(lines)), [name for name, _ in lines])
        axes.set_xticks([])
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        svg = to_svg(canvas, "case-map")
    return Figure(
        name="case-map",
        title="Map of cases",
        svg=svg,
        caption="Each square is a case in the order of its suite and leads to its record. Plain: "
        "passed. ≠ out of tolerance, – skipped or unsupported, ∅ vacuous, ! any other failure.",
    )


def _draw_case(axes: Axes, across: int, down: int, row: dict[str, Any]) -> None:
    status = row["status"]
    doubt = status in ("SKIPPED", "UNSUPPORTED", "VACUOUS")
    colour = _GREEN if status == "PASS" else _AMBER if doubt else _RED
    box = Rectangle((across - 0.42, down - 0.42), 0.84, 0.84, facecolor=colour, edgecolor=GRID)
    box.set_alpha(0.55 if status == "PASS" else 0.95)
    box.set_url(f"#{row['anchor']}")
    axes.add_patch(box)
    sign = _SIGNS.get(status, "!")
    if sign:
        axes.text(across, down, sign, ha="center", va="center", color="#111111", fontsize=8)
