"""Does the gate alarm when nothing changed, and does it see what did (measurement.md §6)?

Reports are simulated: interleaved pairs of runs over the spec's primary metrics, log-normal noise,
either A/A or with a regression injected into ONE metric, judged with an A/A history of the same
machine. A report alarms if any primary metric is REGRESSED.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.core.gate_spec import MAX_PRIMARY_METRICS, GateSpec, PrimaryMetric
from harness.core.metric import Direction, Metric, MetricKind
from harness.core.status import GateStatus
from harness.run.gate_sides import GateRun
from harness.run.gate_timing import judge_timings

__all__ = ["SelftestPlan", "SelftestResult", "selftest"]

_TYPICAL_MS = 100.0


@dataclass(frozen=True, slots=True)
class SelftestPlan:
    """What is simulated.

    Attributes:
        num_history: A/A runs the gate knows beside the pairs.
        noise: relative standard deviation of one run's figure.
        regression: relative change injected into one metric.
    """

    num_reports: int = 1000
    num_pairs: int = 10
    num_metrics: int = MAX_PRIMARY_METRICS
    num_history: int = 40
    noise: float = 0.03
    regression: float = 0.10
    seed: int = 20261130


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """Shares in [0, 1].

    Attributes:
        false_alarm_rate: A/A reports with any REGRESSED.
        detection_rate: reports whose injected metric is REGRESSED.
        misplaced_rate: reports with an injected regression that blame another metric.
    """

    false_alarm_rate: float
    detection_rate: float
    misplaced_rate: float

    @property
    def passed(self) -> bool:
        """At most 1 % false alarms and at least 95 % detection."""
        return self.false_alarm_rate <= 0.01 and self.detection_rate >= 0.95


@dataclass(frozen=True, slots=True)
class _Simulated:
    base: list[GateRun]
    candidate: list[GateRun]
    history: list[GateRun]


def selftest(plan: SelftestPlan) -> SelftestResult:
    """Replay A/A reports and reports with one regression through the gate itself."""
    random = np.random.default_rng(plan.seed)
    names = [f"selftest.metric{index}_ms" for index in range(plan.num_metrics)]
    spec = GateSpec(
        "selftest",
        primary=tuple(PrimaryMetric(name, floor=0.0) for name in names),
        min_pairs=plan.num_pairs,
    )
    alarms = detections = misplaced = 0
    for report in range(plan.num_reports):
        alarms += bool(_regressed(spec, _simulate(random, plan, names, {})))
        guilty = names[report % len(names)]
        blamed = _regressed(spec, _simulate(random, plan, names, {guilty: plan.regression}))
        detections += guilty in blamed
        misplaced += bool(blamed - {guilty})
    return SelftestResult(
        alarms / plan.num_reports, detections / plan.num_reports, misplaced / plan.num_reports
    )


def _regressed(spec: GateSpec, sides: _Simulated) -> set[str]:
    return {
        verdict.metric
        for verdict in judge_timings(spec, sides.base, sides.candidate, sides.history)
        if verdict.status is GateStatus.REGRESSED
    }


def _simulate(
    random: np.random.Generator,
    plan: SelftestPlan,
    names: list[str],
    changes: Mapping[str, float],
) -> _Simulated:
    sides = _Simulated([], [], [])
    for run in range(plan.num_history):
        sides.history.append(_run(random, plan, names, {}, run))
    for pair in range(plan.num_pairs):
        order = plan.num_history + 2 * pair
        sides.base.append(_run(random, plan, names, {}, order))
        sides.candidate.append(_run(random, plan, names, changes, order + 1))
    return sides


def _run(
    random: np.random.Generator,
    plan: SelftestPlan,
    names: list[str],
    changes: Mapping[str, float],
    order: int,
) -> GateRun:
    """One run; its name and start carry its order."""
    noise = np.exp(random.normal(0.0, plan.noise, len(names)))
    metrics = {
        name: Metric(
            name,
            (_TYPICAL_MS * (1.0 + changes.get(name, 0.0)) * float(factor),),
            "ms",
            Direction.LOWER,
            MetricKind.TIMING,
        )
        for name, factor in zip(names, noise, strict=True)
    }
    return GateRun(f"simulated-{order}", f"{order:06d}", {}, metrics)
