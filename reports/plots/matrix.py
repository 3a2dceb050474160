"""The matrix as a heat map: each cell with its number, failed and pruned ones by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from harness.core.results import PointStatus
from reports.document import Figure
from reports.plots.series import MAX_SERIES, Series, cut_note, series_of
from reports.plots.style import GRID, INK, blank, to_svg
from reports.tables.cells import milliseconds

__all__ = ["matrix_figure"]

_MAX_LENGTHS = 16


def matrix_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """TTFT and TPOT, settings down and input lengths across; None for fewer than two points."""
    if len(rows) < 2 or not any(row["ttft_ms"] is not None for row in rows):
        return None
    series = series_of(rows, "input_len")
    shown = series[:MAX_SERIES]
    lengths = sorted({row["input_len"] for row in rows if row["input_len"]})[:_MAX_LENGTHS]
    with blank("matrix", height_in=1.2 + 0.42 * len(shown), widths=(1.0, 1.0)) as (canvas, pair):
        for axes, (column, title) in zip(
            pair, (("ttft_ms", "TTFT ms"), ("tpot_ms", "TPOT ms")), strict=True
        ):
            _draw(axes, shown, lengths, column)
            axes.set_title(title)
        pair[1].set_yticklabels([])
        svg = to_svg(canvas, "matrix")
    return Figure(
        name="matrix",
        title="The matrix at a glance",
        svg=svg,
        caption="Medians; darker is slower, on a scale of the logarithm within each panel. "
        "Cells without a number carry how they ended; an empty cell was never planned."
        + cut_note(series),
    )


def _draw(axes: Axes, series: Sequence[Series], lengths: Sequence[int], column: str) -> None:
    values = [point[column].median for line in series for point in line.points if point[column]]
    low, high = (np.log(min(values)), np.log(max(values))) if values else (0.0, 1.0)
    colours = mpl.colormaps["cividis_r"]
    for down, line in enumerate(series):
        for point in line.points:
            if point["input_len"] not in lengths:
                continue
            across = lengths.index(point["input_len"])
            measured = point[column]
            if measured is None:
                _blank_cell(axes, across, down, point["status"])
                continue
            shade = (np.log(measured.median) - low) / (high - low) if high > low else 0.0
            _cell(axes, across, down, colours(0.1 + 0.75 * shade), point["anchor"])
            ink = "#ffffff" if shade > 0.5 else "#111111"
            text = milliseconds(measured.median)
            axes.text(across, down, text, ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_xlim(-0.5, len(lengths) - 0.5)
    axes.set_ylim(len(series) - 0.5, -0.5)
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_yticks(range(len(series)), [line.label or "this run" for line in series])
    axes.set_xlabel("input tokens")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell(axes: Axes, across: int, down: int, colour: Any, anchor: str) -> None:
    box = Rectangle((across - 0.47, down - 0.45), 0.94, 0.9, facecolor=colour)
    box.set_url(f"#{anchor}")
    axes.add_patch(box)


def _blank_cell(axes: Axes, across: int, down: int, status: str) -> None:
    hatch = "" if status == PointStatus.PRUNED else "////"
    box = Rectangle(
        (across - 0.47, down - 0.45), 0.94, 0.9, facecolor="none", edgecolor=GRID, hatch=hatch
    )
    axes.add_patch(box)
    axes.text(across, down, status.lower(), ha="center", va="center", color=INK, fontsize=7)
