"""Cumulative shares of raw latencies: where medians hide a tail, these show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from reports.document import Figure
from reports.plots.series import MAX_SERIES, cut_note, series_of
from reports.plots.style import blank, to_svg, tune

__all__ = ["cdf_figure"]

# More steps than this per line cannot be seen at the size of the figure.
_MAX_STEPS = 200


def cdf_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """TTFT per request and ITL per gap, pooled over the points of a line."""
    measured = [row for row in rows if row["ttft_samples_ms"]]
    if not measured:
        return None
    series = series_of(measured, "input_len")
    with blank("cdf", widths=(1.0, 1.0)) as (canvas, (left, right)):
        for line in series[:MAX_SERIES]:
            for axes, column in ((left, "ttft_samples_ms"), (right, "itl_samples_ms")):
                pooled = [value for point in line.points for value in point[column]]
                _draw(axes, pooled, line.colour, line.label)
        tune(left, x_label="TTFT ms", y_label="share of requests")
        tune(right, x_label="ITL ms", y_label="share of gaps")
        if any(line.label for line in series):
            right.legend(fontsize=8.5, loc="lower right")
        svg = to_svg(canvas, "cdf")
    return Figure(
        name="cdf",
        title="Latency distributions",
        svg=svg,
        caption="Every completed request and every gap between token chunks, all input lengths "
        "of a line pooled. Warm-ups and failed requests are left out." + cut_note(series),
    )


def _draw(axes: Axes, samples: Sequence[float], colour: str, label: str) -> None:
    if not samples:
        return
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    shares = np.arange(1, ordered.size + 1) / ordered.size
    if ordered.size > _MAX_STEPS:
        picked = np.unique(np.linspace(0, ordered.size - 1, _MAX_STEPS).astype(int))
        ordered, shares = ordered[picked], shares[picked]
    axes.step(ordered, shares, where="post", color=colour, label=label or None)
    axes.set_ylim(0, 1.02)
