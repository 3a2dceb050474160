"""Figures: valid SVG, the same bytes again, nothing silent, every point linked."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest

from reports.document import Figure
from reports.frame import rows_of
from reports.ledger import Ledger
from reports.plots.distribution import cdf_figure
from reports.plots.latency import tpot_figure, ttft_figure
from reports.plots.margins import margin_figure
from reports.plots.matrix import matrix_figure
from reports.plots.parity import budget_figure, case_map_figure
from reports.plots.scaling import concurrency_figure, pareto_figure, scaling_figure
from reports.plots.series import MAX_SERIES, cut_note, series_of
from reports.plots.style import MARKERS, PALETTE, inline_svg

_Draw = Callable[[list[dict[str, Any]]], Figure | None]
_SWEEP: list[_Draw] = [ttft_figure, tpot_figure, matrix_figure, cdf_figure, scaling_figure]
_PARITY: list[_Draw] = [budget_figure, case_map_figure]
_ALL = [(draw, "sweep") for draw in _SWEEP] + [(draw, "parity") for draw in _PARITY]
_ALL += [(margin_figure, "tokens")]


def drawn(draw: _Draw, rows: list[dict[str, Any]]) -> Figure:
    figure = draw(rows)
    assert figure is not None
    return figure


@pytest.mark.parametrize(("draw", "kind"), _ALL)
def test_a_figure_is_valid_and_has_the_same_bytes_again(
    sample: Ledger, draw: _Draw, kind: str
) -> None:
    rows = rows_of(sample, kind)
    figure = drawn(draw, rows)
    assert ET.fromstring(figure.svg).tag.endswith("svg")
    assert figure == draw(rows)
    assert "<metadata" not in figure.svg
    inline = inline_svg(figure.svg)
    assert "http" not in inline
    assert "var(--ink)" in inline
    assert ET.fromstring(inline).tag == "svg"


@pytest.mark.parametrize(("draw", "kind"), _ALL)
def test_no_record_no_figure(draw: _Draw, kind: str) -> None:
    assert draw([]) is None


def test_ids_are_unique_over_all_figures_of_a_page(sample: Ledger) -> None:
    ids: list[str] = []
    for draw, kind in _ALL:
        ids += re.findall(r' id="([^"]+)"', drawn(draw, rows_of(sample, kind)).svg)
    assert len(ids) == len(set(ids))


def test_every_measured_cell_leads_to_its_record(sample: Ledger) -> None:
    rows = rows_of(sample, "sweep")
    measured = {f"#{row['anchor']}" for row in rows if row["ttft_ms"]}
    links = set(re.findall(r'xlink:href="(#r[0-9a-f]{12})"', drawn(ttft_figure, rows).svg))
    assert links == measured
    cases = {f"#{row['anchor']}" for row in rows_of(sample, "parity")}
    figure = drawn(case_map_figure, rows_of(sample, "parity"))
    assert set(re.findall(r'xlink:href="(#r[0-9a-f]{12})"', figure.svg)) == cases


def test_cells_without_a_number_are_named_in_the_matrix(sample: Ledger) -> None:
    texts = re.findall(r">([^<>]+)</text>", drawn(matrix_figure, rows_of(sample, "sweep")).svg)
    assert (texts.count("failed"), texts.count("crashed"), texts.count("pruned")) == (2, 2, 2)


def test_published_lines_stand_in_a_panel_that_says_so(sample: Ledger) -> None:
    figure = drawn(ttft_figure, rows_of(sample, "sweep"))
    assert "published elsewhere" in figure.svg
    assert "measured here" in figure.svg
    assert "not comparable hardware" in figure.caption


def test_load_figures_need_more_than_one_load(sample: Ledger) -> None:
    rows = rows_of(sample, "sweep")
    assert concurrency_figure(rows) is None
    assert pareto_figure(rows) is None
    loaded = [{**row, "concurrency": load} for row in rows for load in (1, 8)]
    assert "requests in flight" in drawn(concurrency_figure, loaded).svg
    assert "output tokens/s" in drawn(pareto_figure, loaded).svg


def test_a_name_with_markup_or_a_formula_is_only_text(sample: Ledger) -> None:
    rows = [{**row, "op": "<b>$x^2$</b>"} for row in rows_of(sample, "parity")]
    svg = drawn(budget_figure, rows).svg
    assert "&lt;b&gt;$x^2$&lt;/b&gt;" in svg


def test_points_of_one_state_never_join_those_of_another(sample: Ledger) -> None:
    rows = rows_of(sample, "sweep")
    both = [*rows, *({**row, "origin": "device"} for row in rows)]
    lines = series_of(both, "input_len")
    assert len(lines) == 6
    for line in lines:
        assert len({point["origin"] for point in line.points}) == 1
        assert "CPU" in line.label or "device" in line.label


def test_more_lines_than_colours_are_said(sample: Ledger) -> None:
    rows = [{**row, "concurrency": load} for row in rows_of(sample, "sweep") for load in (1, 2, 4)]
    lines = series_of(rows, "input_len")
    assert len(lines) == 9 > MAX_SERIES
    assert cut_note(lines) == " Drawn: the first 8 of 9 lines; the table has all."
    assert "first 8 of 9" in drawn(ttft_figure, rows).caption


def luminance(colour: str) -> float:
    """WCAG relative luminance of "#rrggbb"."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("paper", ["#fdfdfc", "#15171a"])
@pytest.mark.parametrize("colour", PALETTE)
def test_every_colour_stands_out_on_light_and_dark_paper(colour: str, paper: str) -> None:
    light, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 2.0


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as protan, deutan and tritan see it.
_VISIONS = {
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """CIELAB (D65) of "#rrggbb" as this vision sees it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    seen = [sum(a * b for a, b in zip(row, linear, strict=True)) for row in _VISIONS[vision]]
    r, g, b = (min(1.0, max(0.0, value)) for value in seen)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", _VISIONS)
def test_colours_are_told_apart_by_every_kind_of_colour_vision(vision: str) -> None:
    """Of lines that share a colour's look the marker differs; of statuses, the sign too."""
    close = {
        (one, other)
        for place, one in enumerate(PALETTE)
        for other in PALETTE[place + 1 :]
        if math.dist(lab(one, vision), lab(other, vision)) < 10
    }
    assert close == set()
    assert len(set(MARKERS)) == len(MARKERS) == len(PALETTE)
