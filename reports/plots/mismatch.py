"""Where in their outputs the cases that failed differ: a tail, a tile or a head stands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reports.document import Figure
from reports.plots.style import GRID, blank, to_svg

__all__ = ["mismatch_figure"]

_MAX_MAPS = 4
_MAX_NAME = 44


def mismatch_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """One map an output that differs, of the first cases that failed; None without any."""
    maps = [
        (row, output, found)
        for row in rows
        for output, found in row["error_maps"].items()
        if any(value for line in found["cells"] for value in line)
    ]
    if not maps:
        return None
    shown = maps[:_MAX_MAPS]
    with blank("mismatch", height_in=2.6, widths=(1.0,) * len(shown)) as (canvas, panels):
        for axes, (row, output, found) in zip(panels, shown, strict=True):
            _draw(axes, row, output, found)
        svg = to_svg(canvas, "mismatch")
    more = f" Drawn: the first {_MAX_MAPS} of {len(maps)} outputs." if len(maps) > _MAX_MAPS else ""
    return Figure(
        name="mismatch",
        title="Where failed outputs differ",
        svg=svg,
        caption="Rows of the output downwards (all axes but the last), its last axis across, in "
        "coarse cells. Darker is worse: the share of elements that differ, or the largest error "
        "over the output's largest. Empty cells do not differ." + more,
    )


def _draw(axes: Axes, row: dict[str, Any], output: str, found: Mapping[str, Any]) -> None:
    colours = mpl.colormaps["cividis_r"]
    cells = found["cells"]
    for down, line in enumerate(cells):
        for across, value in enumerate(line):
            if value <= 0:
                continue
            shade = colours(0.15 + 0.85 * min(1.0, value))
            box = Rectangle((across - 0.5, down - 0.5), 1, 1, facecolor=shade, linewidth=0)
            box.set_url(f"#{row['anchor']}")
            axes.add_patch(box)
    axes.add_patch(
        Rectangle((-0.5, -0.5), len(cells[0]), len(cells), facecolor="none", edgecolor=GRID)
    )
    axes.set_xlim(-0.5, len(cells[0]) - 0.5)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    num_rows, num_columns = found["shape"]
    axes.set_xticks([0, len(cells[0]) - 1], ["0", str(num_columns - 1)])
    axes.set_yticks([0, len(cells) - 1], ["0", str(num_rows - 1)])
    axes.grid(visible=False)
    name = str(row["case_id"])
    short = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
    axes.set_title(f"{short}\n{output}", fontsize=7)
    for spine in axes.spines.values():
        spine.set_visible(False)
