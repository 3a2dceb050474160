"""How latency follows the number of ranks and the load: cp scaling, concurrency, Pareto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from reports.document import Figure
from reports.plots.series import MAX_SERIES, Series, cut_note, series_of
from reports.plots.style import GRID, PAPER, blank, record_urls, to_svg, tune

__all__ = ["concurrency_figure", "pareto_figure", "scaling_figure"]


def scaling_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """Speed-up over the smallest cp per input length; None where only one cp was measured."""
    measured = [row for row in rows if row["ttft_ms"] and row["tpot_ms"] and row["cp"]]
    # ep follows cp in most runs and would split every line into single points.
    measured = [{**row, "ep": None} if row["ep"] == row["cp"] else row for row in measured]
    ranks = sorted({row["cp"] for row in measured})
    if len(ranks) < 2:
        return None
    series = [line for line in series_of(measured, "cp") if len(line.points) > 1]
    with blank("scaling", widths=(1.0, 1.0)) as (canvas, pair):
        for axes, (column, title) in zip(
            pair, (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")), strict=True
        ):
            for line in series[:MAX_SERIES]:
                _draw_speed_up(axes, line, column)
            ideal = [rank / ranks[0] for rank in ranks]
            axes.plot(ranks, ideal, color=GRID, linestyle="--", label="ideal")
            tune(axes, x_label="cp", y_label=f"{title} speed-up over cp={ranks[0]}")
            axes.xaxis.set_major_locator(FixedLocator(ranks))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_ylim(bottom=0)
        pair[0].legend(fontsize=8.5, loc="upper left")
        svg = to_svg(canvas, "scaling")
    return Figure(
        name="scaling",
        title="Scaling over cp",
        svg=svg,
        caption="Ratio of medians to the line's smallest cp; above 1 is faster." + cut_note(series),
    )


def _draw_speed_up(axes: Axes, line: Series, column: str) -> None:
    base = line.points[0][column].median
    ranks = [point["cp"] for point in line.points]
    ratios = [base / point[column].median for point in line.points]
    axes.plot(ranks, ratios, color=line.colour, marker=line.marker, label=line.label or None)
    _link(axes, ranks, ratios, line, line.points)


def concurrency_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """TPOT over concurrency; None where every point has the same."""
    measured = [row for row in rows if row["tpot_ms"] and row["concurrency"]]
    if len({row["concurrency"] for row in measured}) < 2:
        return None
    series = series_of(measured, "concurrency")
    with blank("concurrency") as (canvas, (axes,)):
        for line in series[:MAX_SERIES]:
            loads = [point["concurrency"] for point in line.points]
            medians = [point["tpot_ms"].median for point in line.points]
            axes.plot(loads, medians, color=line.colour, marker=line.marker, label=line.label)
            _link(axes, loads, medians, line, line.points)
        tune(axes, x_label="requests in flight", y_label="TPOT ms")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8.5, loc="lower right")
        svg = to_svg(canvas, "concurrency")
    return Figure(
        name="concurrency",
        title="TPOT over concurrency",
        svg=svg,
        caption="Medians of completed requests." + cut_note(series),
    )


def pareto_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """Output tokens per second against TPOT with the points no other one beats."""
    measured = [row for row in rows if row["tpot_ms"] and row["output_tokens_per_s"]]
    if len({row["concurrency"] for row in measured}) < 2:
        return None
    series = series_of(measured, "concurrency")
    with blank("pareto") as (canvas, (axes,)):
        for line in series[:MAX_SERIES]:
            latencies = [point["tpot_ms"].median for point in line.points]
            rates = [point["output_tokens_per_s"] for point in line.points]
            _link(axes, latencies, rates, line, line.points, label=line.label)
        front = _front(measured)
        axes.plot(*zip(*front, strict=True), color=GRID, linestyle="--", label="best of both")
        tune(axes, x_label="TPOT ms", y_label="output tokens/s")
        axes.legend(fontsize=8.5, loc="lower right")
        svg = to_svg(canvas, "pareto")
    return Figure(
        name="pareto",
        title="Throughput against latency",
        svg=svg,
        caption="Each point is one cell; the dashed line joins those that no other cell beats in "
        "both." + cut_note(series),
    )


def _front(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """(TPOT, tokens/s) of the cells that are best in one for what they are in the other."""
    front: list[tuple[float, float]] = []
    cells = sorted((row["tpot_ms"].median, row["output_tokens_per_s"]) for row in rows)
    for latency, rate in cells:
        if not front or rate > front[-1][1]:
            front.append((latency, rate))
    return front


def _link(
    axes: Axes,
    across: Sequence[float],
    up: Sequence[float],
    line: Series,
    points: Sequence[dict[str, Any]],
    label: str | None = None,
) -> None:
    """Points that lead to their records."""
    marks = axes.scatter(
        across, up, s=44, color=line.colour, marker=line.marker, edgecolor=PAPER, zorder=3
    )
    marks.set_urls(record_urls(points))
    if label:
        marks.set_label(label)
