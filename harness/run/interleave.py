"""Two builds or settings measured in turns on one machine, as the two sides of a paired gate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from harness.core.errors import UsageError
from harness.core.gate_spec import MAX_PRIMARY_METRICS, GateSpec, PrimaryMetric
from harness.core.metric import Metric, MetricKind
from harness.run.gate_sides import GateRun, read_side

__all__ = ["Side", "paired_spec", "read_interleaved", "turns"]

Side = Literal["baseline", "candidate"]
_SETTING = re.compile(r"^sweep\.(?P<setting>.+?)\.(?P<point>in=.*)$")
_GATED = ("ttft_ms", "tpot_ms")


def turns(num_pairs: int) -> Iterator[tuple[int, Side]]:
    """(pair, side) in the order to run: within a pair the first side changes every time."""
    for pair in range(num_pairs):
        first: tuple[Side, Side] = ("baseline", "candidate")
        for side in first if pair % 2 == 0 else reversed(first):
            yield pair, side


def read_interleaved(root: Path) -> tuple[tuple[GateRun, ...], tuple[GateRun, ...]]:
    """The runs below root/baseline and root/candidate, under names that both sides share.

    Where each side ran one setting and the two differ, the setting is left out of the metric
    names: what is compared is then the point, under two settings.

    Raises:
        UsageError: the sides ran several settings that are not the same ones.
    """
    base, candidate = read_side(root / "baseline"), read_side(root / "candidate")
    ours, theirs = _settings(base), _settings(candidate)
    if ours == theirs:
        return base, candidate
    if len(ours) > 1 or len(theirs) > 1:
        raise UsageError(
            f"{root}: the sides ran {', '.join(sorted(ours))} and {', '.join(sorted(theirs))}; "
            "compare one setting with one other, or the same settings of two checkouts"
        )
    return _without_setting(base), _without_setting(candidate)


def paired_spec(base: Sequence[GateRun], floor_ms: float) -> GateSpec:
    """A gate over what was measured: TTFT and TPOT are primary, the first eight of them.

    Raises:
        UsageError: nothing of the kind was measured.
    """
    names = [
        metric.name
        for metric in (base[0].metrics.values() if base else ())
        if metric.kind is MetricKind.TIMING and metric.name.endswith(_GATED)
    ]
    if not names:
        raise UsageError("the baseline measured no TTFT or TPOT: nothing to compare")
    primary = tuple(PrimaryMetric(name, floor_ms) for name in names[:MAX_PRIMARY_METRICS])
    return GateSpec("ab", ("*.status",), primary)


def _settings(runs: Sequence[GateRun]) -> set[str]:
    found = (_SETTING.match(name) for run in runs for name in run.metrics)
    return {one["setting"] for one in found if one is not None}


def _without_setting(runs: Sequence[GateRun]) -> tuple[GateRun, ...]:
    return tuple(replace(run, metrics=_renamed(run.metrics, _point_name)) for run in runs)


def _renamed(metrics: Mapping[str, Metric], name: Callable[[str], str]) -> dict[str, Metric]:
    return {name(key): replace(metric, name=name(key)) for key, metric in metrics.items()}


def _point_name(name: str) -> str:
    found = _SETTING.match(name)
    return name if found is None else f"sweep.{found['point']}"
