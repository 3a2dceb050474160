"""TTFT and TPOT over the input length: measured at the left, published at the right.

The two panels have axes of their own: they show other hardware and another model size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from harness.core.results import PointStatus
from reports.document import Figure
from reports.plots.series import MAX_SERIES, Series, cut_note, series_of
from reports.plots.style import GRID, INK, PAPER, blank, record_urls, to_svg, tune
from reports.published import PUBLISHED, PUBLISHED_METHOD

__all__ = ["tpot_figure", "ttft_figure"]

_MISSING_MARKS = {PointStatus.PRUNED: "|", PointStatus.FAILED: "x", PointStatus.CRASHED: "x"}


def ttft_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """TTFT over input length, one line per cp; None where nothing was measured."""
    published = [
        (stack, [(item.input_len, item.ttft_ms, item.ttft_ms) for item in _published(stack)])
        for stack in _stacks()
    ]
    return _figure(rows, "ttft", "ttft_ms", "TTFT", published)


def tpot_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """TPOT over input length, one line per cp; None where nothing was measured."""
    published = [
        (stack, [(item.input_len, *item.tpot_ms) for item in _published(stack) if item.tpot_ms])
        for stack in _stacks()
    ]
    return _figure(rows, "tpot", "tpot_ms", "TPOT", published)


def _stacks() -> list[str]:
    return list(dict.fromkeys(item.stack for item in PUBLISHED))


def _published(stack: str) -> list[Any]:
    return [item for item in PUBLISHED if item.stack == stack]


def _figure(
    rows: Sequence[dict[str, Any]],
    name: str,
    column: str,
    title: str,
    published: list[tuple[str, list[tuple[int, float, float]]]],
) -> Figure | None:
    series = series_of(rows, "input_len")
    if not any(row[column] is not None for row in rows):
        return None
    with blank(name, widths=(2.3, 1.0)) as (canvas, (measured, beside)):
        for line in series[:MAX_SERIES]:
            _draw_line(measured, line, column)
        _draw_missing(measured, series[:MAX_SERIES])
        tune(measured, x_label="input tokens", y_label=f"{title} ms", title="measured here")
        _input_ticks(measured, sorted({row["input_len"] for row in rows if row["input_len"]}))
        measured.set_ylim(bottom=0)
        if any(line.label for line in series):
            measured.legend(fontsize=8.5, loc="upper left")
        _draw_published(beside, published)
        tune(beside, x_label="input tokens", y_label="", title="published elsewhere")
        svg = to_svg(canvas, name)
    return Figure(
        name=name,
        title=f"{title} over input length",
        svg=svg,
        caption="Median; bars are the 95 % interval of the median, below six requests the range. "
        "A cross under the axis is a failed or crashed cell, a bar a pruned one. "
        f"Right: {PUBLISHED_METHOD}; not comparable hardware." + cut_note(series),
    )


def _draw_line(axes: Axes, line: Series, column: str) -> None:
    points = [point for point in line.points if point[column] is not None]
    if not points:
        return
    lengths = [point["input_len"] for point in points]
    medians = [point[column].median for point in points]
    below = [point[column].median - point[column].low for point in points]
    above = [point[column].high - point[column].median for point in points]
    axes.plot(lengths, medians, color=line.colour, label=line.label or None, marker=line.marker)
    axes.errorbar(
        lengths, medians, (below, above), fmt="none", ecolor=line.colour, elinewidth=1.2, capsize=3
    )
    links = axes.scatter(
        lengths, medians, s=44, color=line.colour, marker=line.marker, edgecolor=PAPER, zorder=3
    )
    links.set_urls(record_urls(points))


def _draw_missing(axes: Axes, series: Sequence[Series]) -> None:
    """Cells without a number stand below the axis, one row a line, so that none is silent."""
    depth = 0
    for line in series:
        missing = [point for point in line.points if point["status"] != PointStatus.OK]
        depth += bool(missing)
        for point in missing:
            axes.plot(
                point["input_len"],
                -0.018 - 0.035 * (depth - 1),
                marker=_MISSING_MARKS[point["status"]],
                color=line.colour,
                markersize=7,
                markeredgewidth=2,
                clip_on=False,
                linestyle="none",
                transform=axes.get_xaxis_transform(),
            )
    if depth:
        axes.tick_params(axis="x", pad=6 + 7 * depth)


def _draw_published(
    axes: Axes, published: list[tuple[str, list[tuple[int, float, float]]]]
) -> None:
    """Grey ink, not the palette: these lines belong to none of the measured series."""
    for place, (stack, points) in enumerate(published):
        style = ("-", "--")[place % 2]
        lengths = [length for length, _, _ in points]
        middles = [(low + high) / 2 for _, low, high in points]
        spread = [(high - low) / 2 for _, low, high in points]
        axes.errorbar(
            lengths,
            middles,
            spread if any(spread) else None,
            color=INK,
            alpha=0.75,
            linestyle=style,
            marker=("o", "s")[place % 2],
            markerfacecolor=PAPER,
            linewidth=1.2,
            capsize=3,
            label=stack,
        )
    lengths = sorted({length for _, points in published for length, _, _ in points})
    _input_ticks(axes, lengths)
    names = [str(length) if length < 1024 else f"{length / 1024:g}k" for length in lengths]
    axes.set_xticks(lengths, names)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.legend(fontsize=8, loc="upper left")
    axes.spines["left"].set_color(GRID)


def _input_ticks(axes: Axes, lengths: Sequence[int]) -> None:
    """A logarithmic axis where lengths double, ticks only at lengths that were asked for."""
    if lengths and lengths[-1] >= 4 * lengths[0]:
        axes.set_xscale("log", base=2)
    shown = list(lengths)
    while len(shown) > 10:
        shown = shown[::2]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(shown, [str(length) for length in shown])
