"""One look for every figure, and its SVG: same records, same bytes.

Ink, grid and paper are drawn in stand-in colours: a page replaces them by its own CSS variables,
so that a figure follows the reader's light or dark theme; a file keeps them as they are.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullFormatter, StrMethodFormatter

__all__ = [
    "GRID",
    "INK",
    "MARKERS",
    "PALETTE",
    "PAPER",
    "blank",
    "inline_svg",
    "log_axis",
    "record_urls",
    "to_svg",
    "tune",
]

INK, GRID, PAPER = "#26292e", "#d9dce1", "#fefefd"
_CSS_VARIABLES = {INK: "var(--ink)", GRID: "var(--line)", PAPER: "var(--paper)"}

# Okabe and Ito's colours, told apart by every common kind of colour vision; black and yellow are
# left out because one vanishes on dark paper and the other on light; violet and brown take their
# places. Markers differ as well.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8700f0", "#873c1e")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold a dollar sign
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "hatch.color": GRID,
    "path.simplify": True,
}


@contextmanager
def _settings(name: str) -> Iterator[None]:
    # A salt per figure keeps the ids of several figures in one page apart.
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        yield


@contextmanager
def blank(
    name: str, *, width_in: float = 7.4, height_in: float = 3.3, widths: tuple[float, ...] = (1.0,)
) -> Iterator[tuple[Canvas, list[Axes]]]:
    """An empty canvas with axes side by side, under the common settings."""
    with _settings(name):
        canvas = Canvas(figsize=(width_in, height_in), layout="constrained")
        grid = canvas.subplots(1, len(widths), squeeze=False, width_ratios=list(widths))
        yield canvas, list(grid[0])


def tune(axes: Axes, *, x_label: str, y_label: str, title: str = "") -> None:
    """Labels and the horizontal grid only."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.grid(visible=False, axis="x")


def log_axis(axis: Axis) -> None:
    """Plain numbers at the powers of ten: names are never read as formulas, nor are these."""
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def record_urls(rows: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """Where marks lead; None where the document does not hold the record."""
    return [f"#{row['anchor']}" if row["anchor"] else None for row in rows]


def to_svg(canvas: Canvas, name: str) -> str:
    """The canvas as standalone SVG without date, creator or external type definition."""
    buffer = io.StringIO()
    with _settings(name):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.savefig(buffer, format="svg", metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)
    return _own_ids(text, name)


def _own_ids(svg: str, name: str) -> str:
    """Put the figure's name before each of its ids; links to records stay as they are."""
    ids = set(re.findall(r' id="([^"]+)"', svg))

    def rename(match: re.Match[str]) -> str:
        before, found = match.group(1), match.group(2)
        return f"{before}{name}-{found}" if found in ids else match.group(0)

    return re.sub(r"( id=\"|href=\"#|url\(#)([^\")]+)", rename, svg)


def inline_svg(svg: str) -> str:
    """The same figure for the inside of a page: no namespaces, colours from the page's theme."""
    text = re.sub(r' xmlns(:xlink)?="[^"]+"', "", svg).replace("xlink:href", "href")
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for colour, variable in _CSS_VARIABLES.items():
        text = text.replace(colour, variable)
    return text
