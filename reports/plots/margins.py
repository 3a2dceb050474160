"""How close each generated token was to another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.document import Figure
from reports.plots.style import INK, PALETTE, PAPER, blank, log_axis, to_svg, tune

__all__ = ["margin_figure"]

_SHOWN = {
    "MATCH": ("match", PALETTE[0], "o"),
    "NEAR_TIE": ("near tie", PALETTE[1], "D"),
    "DIVERGED": ("diverged", PALETTE[5], "X"),
}
# A margin of zero is an exact tie; a logarithmic axis has no place for it.
_SMALLEST_MARGIN = 1e-6
# measurement.md §2: τ = min(2 N + 2 ULP_bf16, 0.1).
_LARGEST_TAU = 0.1


def margin_figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """Margin of the oracle's first over its second token per position; None without margins."""
    points: dict[str, list[tuple[int, float, str]]] = {status: [] for status in _SHOWN}
    for row in rows:
        for place, (status, margin) in enumerate(
            zip(row["positions"], row["margins"], strict=False)
        ):
            points[status].append((place, max(float(margin), _SMALLEST_MARGIN), row["anchor"]))
    if not any(points.values()):
        return None
    limits = [
        min(row["logit_bound"], _LARGEST_TAU)
        for row in rows
        if row["noise"] is not None and row["logit_bound"]
    ]
    with blank("margins") as (canvas, (axes,)):
        for status, (label, colour, marker) in _SHOWN.items():
            found = list(dict.fromkeys(points[status]))
            if found:
                places, margins, anchors = zip(*found, strict=True)
                marks = axes.scatter(
                    places, margins, s=30, color=colour, marker=marker, label=label,
                    edgecolor=PAPER, linewidth=0.6,
                )  # fmt: skip
                marks.set_urls([f"#{anchor}" for anchor in anchors])
        if limits:
            axes.axhline(max(limits), color=INK, linestyle="--", linewidth=1, label="τ at most")
        axes.set_yscale("log")
        log_axis(axes.yaxis)
        tune(axes, x_label="generated position", y_label="logit margin")
        axes.legend(fontsize=8.5, loc="lower right", bbox_to_anchor=(1, 1), ncols=4)
        svg = to_svg(canvas, "margins")
    return Figure(
        name="margins",
        title="Token margins",
        svg=svg,
        caption="The oracle's logit of its first token over its second, per position of every "
        "comparison. Only below the dashed line, the largest τ of the near-tie rule, may a flip "
        "be a near tie.",
    )
