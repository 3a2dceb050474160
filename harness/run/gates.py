"""Gates: a candidate's metrics against a baseline's, each with one of nine verdicts (§6)."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import ExitCode
from harness.core.gate_spec import GateSpec
from harness.core.metric import Direction, GateVerdict, Metric, MetricKind
from harness.core.status import GateStatus, OpStatus, RunStatus, worst_exit_code
from harness.run.gate_sides import GateRun, environment_difference
from harness.run.gate_timing import judge_timings

__all__ = ["gate_exit_code", "judge"]

# What must be equal for counts to mean the same; timings need more (see gate_timing).
_DETERMINISTIC_ENVIRONMENT = ("origin",)


def judge(
    spec: GateSpec,
    base: Sequence[GateRun],
    candidate: Sequence[GateRun],
    history: Sequence[GateRun] = (),
) -> tuple[GateVerdict, ...]:
    """Judge every metric of either side, deterministic ones first.

    Args:
        base, candidate: runs in order of their start; may be empty on the base side
            (NO_BASELINE).
        history: A/A runs of one unchanged build, for the spread of timings.
    """
    same = {run.run_id for run in base} & {run.run_id for run in candidate}
    if same:
        return (
            GateVerdict("run", GateStatus.INVALID, f"run {min(same)} is on both sides of the gate"),
        )
    counts = _judge_counts(spec, base, candidate)
    return (*counts, *judge_timings(spec, base, candidate, history))


def gate_exit_code(verdicts: Sequence[GateVerdict]) -> ExitCode:
    """Of the verdicts that count; none that counts is VACUOUS."""
    return worst_exit_code(verdict.status.exit_code for verdict in verdicts if not verdict.advisory)


def _judge_counts(
    spec: GateSpec, base: Sequence[GateRun], candidate: Sequence[GateRun]
) -> list[GateVerdict]:
    ours, theirs = _deterministic(base), _deterministic(candidate)
    names = [*ours, *(name for name in theirs if name not in ours)]
    verdicts = []
    for name in names:
        advisory = not spec.gates_exactly(name)
        sides = ours.get(name, []), theirs.get(name, [])
        verdicts.append(_judge_count(name, *sides, bool(base), _foreign(base, candidate), advisory))
    return verdicts


def _deterministic(runs: Sequence[GateRun]) -> dict[str, list[Metric]]:
    """Metric name -> its value in each run."""
    found: dict[str, list[Metric]] = {}
    for run in runs:
        for metric in run.metrics.values():
            if metric.kind is MetricKind.DETERMINISTIC:
                found.setdefault(metric.name, []).append(metric)
    return found


def _judge_count(
    name: str,
    base: Sequence[Metric],
    candidate: Sequence[Metric],
    has_baseline: bool,
    foreign: str,
    advisory: bool,
) -> GateVerdict:
    if not candidate:
        return GateVerdict(
            name,
            GateStatus.MISSING,
            "in the baseline only",
            unit=base[0].unit,
            baseline=base[0].values[0],
            advisory=advisory,
        )
    found = candidate[-1].values[0]
    if not base:
        status = GateStatus.NEW if has_baseline else GateStatus.NO_BASELINE
        return GateVerdict(
            name, status, "no baseline", candidate[-1].unit, candidate=found, advisory=advisory
        )
    expected = base[-1].values[0]
    status, message = _compare(base, candidate, foreign)
    return GateVerdict(
        name,
        status,
        message,
        unit=base[-1].unit,
        baseline=expected,
        candidate=found,
        effect=_effect(expected, found),
        advisory=advisory,
    )


def _compare(
    base: Sequence[Metric], candidate: Sequence[Metric], foreign: str
) -> tuple[GateStatus, str]:
    ours, theirs = base[-1], candidate[-1]
    if foreign:
        return GateStatus.INCOMPARABLE, foreign
    if (ours.unit, ours.direction) != (theirs.unit, theirs.direction):
        return GateStatus.INCOMPARABLE, (
            f"unit or direction differs: {ours.unit}/{ours.direction.value} against "
            f"{theirs.unit}/{theirs.direction.value}"
        )
    for side, metrics in (("baseline", base), ("candidate", candidate)):
        values = sorted({str(metric.values[0]) for metric in metrics})
        if len(values) > 1:
            return GateStatus.REGRESSED, f"differs between runs of the {side}: {', '.join(values)}"
    if ours.values == theirs.values:
        return GateStatus.PASS, "unchanged"
    change = f"{ours.values[0]} -> {theirs.values[0]}"
    return (GateStatus.IMPROVED if _better(ours, theirs) else GateStatus.REGRESSED), change


def _better(base: Metric, candidate: Metric) -> bool:
    ours, theirs = base.values[0], candidate.values[0]
    if base.unit == "status":
        return _is_green(theirs) and not _is_green(ours)
    if isinstance(ours, str) or isinstance(theirs, str):
        return False
    lower = base.direction is Direction.LOWER and theirs < ours
    return lower or (base.direction is Direction.HIGHER and theirs > ours)


_GREEN = {"OK", OpStatus.PASS.value, RunStatus.MATCH.value}


def _is_green(status: float | str) -> bool:
    return status in _GREEN


def _effect(base: float | str, candidate: float | str) -> float | None:
    if isinstance(base, str) or isinstance(candidate, str) or base == 0:
        return None
    return candidate / base - 1.0


def _foreign(base: Sequence[GateRun], candidate: Sequence[GateRun]) -> str:
    return environment_difference(base, candidate, _DETERMINISTIC_ENVIRONMENT)
