"""Timing metrics of a gate: effect, bound and p-value decide together (measurement.md §6).

The unit of replication is a run. Interleaved runs are compared in pairs; other runs are history
and compared unpaired. Effects are log ratios, signed so that positive is worse. The standard
error of the A/A effect comes from the spread of the pairs and from the spread of runs within one
side (A/A history included), the smaller of the two: a drift that both sides share inflates only
the latter, few pairs blur only the former.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from harness.core.gate_spec import GateSpec, PrimaryMetric
from harness.core.metric import Direction, GateVerdict, Metric, MetricKind
from harness.core.status import GateStatus
from harness.run.gate_sides import GateRun, environment_difference, interleaved
from harness.run.statistics import (
    effect_standard_error,
    hodges_lehmann,
    hodges_lehmann_shift,
    holm,
    mann_whitney_p,
    paired_lower_bound,
    paired_permutation_p,
    shift_lower_bound,
    shift_standard_error,
)

__all__ = ["TimingEvidence", "judge_timings", "weigh"]

_TIMING_ENVIRONMENT = ("origin", "cpu_model", "num_cores", "python", "torch", "torch_threads")
_STANDARD_ERRORS = 3.0
_ADVISORY_FLOOR = 0.0


@dataclass(frozen=True, slots=True)
class TimingEvidence:
    """What the samples of one metric say, in both directions.

    Attributes:
        worse, better: effect as a log ratio; `better` is `-worse`.
        worse_bound, better_bound: one-sided 95 % lower bounds of the two; None where the sample
            is too small for one.
        worse_p, better_p: exact one-sided permutation p, before Holm.
        standard_error: of the effect under no change.
        change: |candidate - baseline| of the medians, in the metric's unit.
    """

    worse: float
    worse_bound: float | None
    better_bound: float | None
    worse_p: float
    better_p: float
    standard_error: float
    baseline: float
    candidate: float
    num_pairs: int

    @property
    def change(self) -> float:
        return abs(self.candidate - self.baseline)


@dataclass(frozen=True, slots=True)
class _Sides:
    base: Sequence[GateRun]
    candidate: Sequence[GateRun]
    history: Sequence[GateRun]
    paired: bool
    foreign: str


def weigh(
    base: Sequence[float],
    candidate: Sequence[float],
    *,
    paired: bool,
    higher_is_worse: bool,
    history: Sequence[float] = (),
) -> TimingEvidence:
    """Weigh two samples of positive numbers, at least two each.

    Args:
        history: the metric in runs of one unchanged build (A/A), for the standard error.

    Raises:
        ValueError: a value that is not positive and finite, or unequal numbers of a pair.
    """
    sign = 1.0 if higher_is_worse else -1.0
    ours, theirs = sign * _logs(base), sign * _logs(candidate)
    first, second = [float(value) for value in ours], [float(value) for value in theirs]
    pooled_error = shift_standard_error(first, second, [float(one) for one in _logs(history)])
    medians = median(base), median(candidate)
    if paired:
        differences = [after - before for before, after in zip(first, second, strict=True)]
        mirrored = [-difference for difference in differences]
        return TimingEvidence(
            hodges_lehmann(differences),
            paired_lower_bound(differences),
            paired_lower_bound(mirrored),
            paired_permutation_p(differences),
            paired_permutation_p(mirrored),
            min(effect_standard_error(differences), pooled_error),
            *medians,
            num_pairs=len(differences),
        )
    return TimingEvidence(
        hodges_lehmann_shift(first, second),
        shift_lower_bound(first, second),
        shift_lower_bound(second, first),
        mann_whitney_p(first, second),
        mann_whitney_p(second, first),
        pooled_error,
        *medians,
        num_pairs=min(len(first), len(second)),
    )


def judge_timings(
    spec: GateSpec,
    base: Sequence[GateRun],
    candidate: Sequence[GateRun],
    history: Sequence[GateRun] = (),
) -> list[GateVerdict]:
    """Primary metrics with Holm over them; every other timing is advisory, judged alone.

    Args:
        history: runs of one unchanged build on this machine (A/A).
    """
    primary = [metric.name for metric in spec.primary]
    others = sorted(_timing_names((*base, *candidate)) - set(primary))
    foreign = environment_difference((*base, *history), candidate, _TIMING_ENVIRONMENT)
    sides = _Sides(base, candidate, history, interleaved(base, candidate), foreign)
    verdicts = _judge_family(spec, primary, sides)
    if not spec.timing_counts:
        verdicts = [replace(verdict, advisory=True) for verdict in verdicts]
    for name in others:
        verdicts += [
            replace(verdict, advisory=True) for verdict in _judge_family(spec, [name], sides)
        ]
    return verdicts


def _timing_names(runs: Sequence[GateRun]) -> set[str]:
    return {
        metric.name
        for run in runs
        for metric in run.metrics.values()
        if metric.kind is MetricKind.TIMING
    }


def _judge_family(spec: GateSpec, names: Sequence[str], sides: _Sides) -> list[GateVerdict]:
    """Metrics that share one Holm correction."""
    settled: dict[str, GateVerdict] = {}
    evidence: dict[str, TimingEvidence] = {}
    units: dict[str, str] = {}
    for name in names:
        base, candidate = _metrics(name, sides.base), _metrics(name, sides.candidate)
        verdict = _settle(spec, name, base, candidate, sides)
        if verdict is not None:
            settled[name] = verdict
            continue
        units[name] = base[0].unit
        evidence[name] = weigh(
            _values(base),
            _values(candidate),
            paired=sides.paired and len(base) == len(candidate) == len(sides.base),
            higher_is_worse=base[0].direction is Direction.LOWER,
            history=_values(_metrics(name, sides.history)),
        )
    worse = holm([one.worse_p for one in evidence.values()])
    better = holm([one.better_p for one in evidence.values()])
    for index, (name, one) in enumerate(evidence.items()):
        limits = spec.primary_named(name) or PrimaryMetric(name, _ADVISORY_FLOOR)
        settled[name] = _decide(limits, units[name], one, (worse[index], better[index]), spec.alpha)
    return [settled[name] for name in names]


def _settle(
    spec: GateSpec,
    name: str,
    base: Sequence[Metric],
    candidate: Sequence[Metric],
    sides: _Sides,
) -> GateVerdict | None:
    """The verdict where the samples cannot be weighed; None where they can."""
    every = (*base, *candidate)
    unit = every[0].unit if every else ""
    num_pairs = min(len(base), len(candidate))
    if not candidate:
        return GateVerdict(name, GateStatus.MISSING, "the candidate did not measure it", unit)
    if not sides.base:
        return GateVerdict(name, GateStatus.NO_BASELINE, "no baseline", unit)
    if num_pairs < spec.min_pairs:
        message = f"{num_pairs} pairs of runs, {spec.min_pairs} needed"
        return GateVerdict(name, GateStatus.INCONCLUSIVE, message, unit, num_pairs=num_pairs)
    if sides.foreign:
        message = sides.foreign
        return GateVerdict(name, GateStatus.INCOMPARABLE, message, unit, num_pairs=num_pairs)
    if len({(metric.unit, metric.direction, metric.kind) for metric in every}) > 1:
        message = "unit, direction or kind differs between the runs"
        return GateVerdict(name, GateStatus.INCOMPARABLE, message, unit, num_pairs=num_pairs)
    if not all(_is_positive(value) for metric in every for value in metric.values):
        message = "a sample is no positive number"
        return GateVerdict(name, GateStatus.INVALID, message, unit, num_pairs=num_pairs)
    return None


def _decide(
    limits: PrimaryMetric,
    unit: str,
    evidence: TimingEvidence,
    adjusted_p: tuple[float, float],
    alpha: float,
) -> GateVerdict:
    threshold = max(math.log1p(limits.threshold), _STANDARD_ERRORS * evidence.standard_error)

    def significant(bound: float | None, p_value: float) -> bool:
        clear = bound is not None and bound > threshold
        return clear and evidence.change > limits.floor and p_value < alpha

    status, bound, p_value = GateStatus.PASS, evidence.worse_bound, adjusted_p[0]
    if significant(evidence.worse_bound, adjusted_p[0]):
        status = GateStatus.REGRESSED
    elif significant(evidence.better_bound, adjusted_p[1]):
        status, bound, p_value = GateStatus.IMPROVED, evidence.better_bound, adjusted_p[1]
    return GateVerdict(
        metric=limits.name,
        status=status,
        message=f"{math.expm1(evidence.worse):+.1%} worse, threshold {math.expm1(threshold):.1%}",
        unit=unit,
        baseline=evidence.baseline,
        candidate=evidence.candidate,
        effect=math.expm1(evidence.worse),
        lower_bound=None if bound is None else math.expm1(bound),
        p_value=p_value,
        num_pairs=evidence.num_pairs,
    )


def _metrics(name: str, runs: Sequence[GateRun]) -> list[Metric]:
    return [run.metrics[name] for run in runs if name in run.metrics]


def _values(metrics: Sequence[Metric]) -> list[float]:
    """One number a run: the median of what it measured."""
    return [median(float(value) for value in metric.values) for metric in metrics]


def _is_positive(value: float | str) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _logs(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError("a log ratio needs positive finite numbers")
    return np.log(array)
