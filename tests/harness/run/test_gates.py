"""Gates: nine verdicts, and what each needs."""

import json
import math
from dataclasses import replace

import pytest

from harness.core.errors import ExitCode, InputError, MissingEvidenceError
from harness.core.gate_spec import GateSpec, PrimaryMetric
from harness.core.metric import Direction, Metric, MetricKind
from harness.core.status import GateStatus
from harness.run.clock import ManualClock
from harness.run.gate_selftest import SelftestPlan, selftest
from harness.run.gate_sides import GateRun, interleaved, read_side
from harness.run.gate_timing import weigh
from harness.run.gates import gate_exit_code, judge
from harness.run.store import new_run

TTFT = "sweep.fast.cp=1.in=16.out=8.ttft_ms"
SPEC = GateSpec(
    "test", deterministic=("*.status", "*.collectives"), primary=(PrimaryMetric(TTFT, floor=0.5),)
)
NOISE = (0.0, 0.01, -0.01, 0.015, -0.005, 0.004, -0.012, 0.008, -0.003, 0.001)


def count(name, value, unit="1", direction=Direction.LOWER):
    return Metric(name, (value,), unit, direction, MetricKind.DETERMINISTIC)


def status(name, value):
    return count(name, value, "status", Direction.EQUAL)


def timing(name, value, unit="ms", direction=Direction.LOWER):
    return Metric(name, (value,), unit, direction, MetricKind.TIMING)


def run(order, *metrics, **environment):
    named = {metric.name: metric for metric in metrics}
    return GateRun(f"run-{order}", f"{order:04d}", environment, named)


def verdict_of(base, candidate, spec=SPEC):
    """The verdict on one deterministic metric."""
    sides = ([run(0, *base)], [run(1, *candidate)])
    (verdict,) = [one for one in judge(spec, *sides) if one.metric != TTFT]
    return verdict


def timed(ratio=1.0, num_pairs=10, level=100.0, **options):
    """Interleaved pairs: the candidate is `ratio` times the base, with paired noise."""
    name = options.get("name", TTFT)
    direction = options.get("direction", Direction.LOWER)
    base, candidate = [], []
    for pair in range(num_pairs):
        drift = 1.0 + 0.02 * pair
        noise = 1.0 + NOISE[pair % 10]
        base.append(run(2 * pair, timing(name, level * drift, direction=direction)))
        slower = level * drift * ratio * noise
        candidate.append(run(2 * pair + 1, timing(name, slower, direction=direction)))
    return base, candidate


def timing_verdict(base, candidate, spec=SPEC):
    (verdict,) = judge(spec, base, candidate)
    return verdict


def test_an_unchanged_count_passes():
    verdict = verdict_of([count("a.collectives", 20)], [count("a.collectives", 20)])
    assert (verdict.status, verdict.advisory) == (GateStatus.PASS, False)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(20, 21, GateStatus.REGRESSED), (20, 19, GateStatus.IMPROVED)],
)
def test_any_change_of_a_count_is_a_verdict(before, after, expected):
    verdict = verdict_of([count("a.collectives", before)], [count("a.collectives", after)])
    assert verdict.status is expected
    assert verdict.effect == pytest.approx(after / before - 1)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("MATCH", "DIVERGED", GateStatus.REGRESSED),
        ("MATCH", "NEAR_TIE", GateStatus.REGRESSED),
        ("DIVERGED", "MATCH", GateStatus.IMPROVED),
        ("UNSUPPORTED", "PASS", GateStatus.IMPROVED),
        ("CRASH", "HANG", GateStatus.REGRESSED),
        ("PASS", "PASS", GateStatus.PASS),
    ],
)
def test_statuses_are_gated_exactly(before, after, expected):
    assert verdict_of([status("a.status", before)], [status("a.status", after)]).status is expected


def test_metrics_on_one_side_only():
    assert verdict_of([count("a.collectives", 2)], []).status is GateStatus.MISSING
    base, candidate = [status("a.status", "PASS")], [status("a.status", "PASS")]
    sides = [run(0, *base)], [run(1, *candidate, count("b.collectives", 1))]
    verdicts = {one.metric: one.status for one in judge(SPEC, *sides)}
    assert verdicts["b.collectives"] is GateStatus.NEW
    alone = judge(SPEC, [], [run(1, count("a.collectives", 2))])
    assert alone[0].status is GateStatus.NO_BASELINE


def test_another_unit_is_incomparable():
    verdict = verdict_of([count("a.collectives", 2)], [count("a.collectives", 2, unit="bytes")])
    assert verdict.status is GateStatus.INCOMPARABLE


def test_counts_of_another_backend_are_incomparable():
    metric = status("a.status", "PASS")
    sides = [run(0, metric, origin="cpu-interpreter")], [run(1, metric, origin="device")]
    verdict = judge(SPEC, *sides)[0]
    assert verdict.status is GateStatus.INCOMPARABLE
    assert "origin" in verdict.message


def test_a_count_that_differs_between_runs_of_one_side_is_no_constant():
    base = [run(0, count("a.collectives", 2)), run(2, count("a.collectives", 3))]
    verdict = judge(SPEC, base, [run(1, count("a.collectives", 3))])[0]
    assert verdict.status is GateStatus.REGRESSED
    assert "differs between runs of the baseline" in verdict.message


def test_the_same_run_on_both_sides_is_invalid():
    sides = [run(0, status("a.status", "PASS"))]
    verdicts = judge(SPEC, sides, sides)
    assert [one.status for one in verdicts] == [GateStatus.INVALID]
    assert gate_exit_code(verdicts) is ExitCode.VACUOUS


def test_what_no_pattern_names_is_advisory_and_does_not_fail_the_gate():
    green = status("a.status", "PASS")
    sides = [run(0, green, count("a.bytes", 1))], [run(1, green, count("a.bytes", 2))]
    spec = GateSpec("test", deterministic=("*.status",))
    verdicts = judge(spec, *sides)
    assert {one.metric: one.advisory for one in verdicts} == {"a.status": False, "a.bytes": True}
    assert gate_exit_code(verdicts) is ExitCode.PASS


def test_a_gate_that_compared_nothing_is_vacuous():
    spec = GateSpec("test", deterministic=("*.status",))
    assert gate_exit_code(judge(spec, [run(0)], [run(1)])) is ExitCode.VACUOUS


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (1.0, GateStatus.PASS),
        (1.02, GateStatus.PASS),
        (1.10, GateStatus.REGRESSED),
        (0.90, GateStatus.IMPROVED),
    ],
)
def test_paired_timings(ratio, expected):
    verdict = timing_verdict(*timed(ratio))
    assert verdict.status is expected
    assert verdict.num_pairs == 10
    assert verdict.effect == pytest.approx(ratio - 1, abs=0.01)
    assert verdict.p_value is not None


def test_drift_that_both_sides_share_does_not_hide_a_regression():
    base, candidate = timed(1.10)
    assert interleaved(base, candidate)
    values = [[one.metrics[TTFT].values[0] for one in side] for side in (base, candidate)]
    paired = weigh(*values, paired=True, higher_is_worse=True)
    assert paired.standard_error < 0.004
    assert paired.worse == pytest.approx(math.log(1.10), abs=0.005)


def test_higher_is_better_where_the_metric_says_so():
    better = timed(1.10, direction=Direction.HIGHER)
    assert timing_verdict(*better).status is GateStatus.IMPROVED
    worse = timed(0.90, direction=Direction.HIGHER)
    assert timing_verdict(*worse).status is GateStatus.REGRESSED


def test_a_change_below_the_floor_does_not_count():
    small = timed(1.10, level=3.0)
    assert timing_verdict(*small).status is GateStatus.PASS


def test_too_few_pairs_are_neither_green_nor_red():
    verdict = timing_verdict(*timed(2.0, num_pairs=9))
    assert verdict.status is GateStatus.INCONCLUSIVE
    assert verdict.message == "9 pairs of runs, 10 needed"
    assert gate_exit_code([verdict]) is ExitCode.CANNOT_JUDGE


def test_history_that_is_not_interleaved_is_compared_unpaired():
    base, candidate = timed(1.5)
    later = [replace(one, start=f"9{one.start}") for one in candidate]
    assert not interleaved(base, later)
    assert timing_verdict(base, later).status is GateStatus.REGRESSED
    # The drift of 20 % over the runs now counts as spread: 10 % is no longer beyond it.
    base, candidate = timed(1.10)
    later = [replace(one, start=f"9{one.start}") for one in candidate]
    assert timing_verdict(base, later).status is GateStatus.PASS


def test_timings_of_another_machine_are_incomparable():
    base, candidate = timed()
    base = [replace(one, environment={"cpu_model": "other"}) for one in base]
    verdict = timing_verdict(base, candidate)
    assert verdict.status is GateStatus.INCOMPARABLE
    assert "cpu_model" in verdict.message


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sample_that_is_no_positive_number_is_invalid(value):
    base, candidate = timed()
    candidate[3] = run(7, timing(TTFT, value))
    assert timing_verdict(base, candidate).status is GateStatus.INVALID


def test_a_primary_metric_nobody_measured_is_missing():
    green = status("a.status", "PASS")
    verdicts = judge(SPEC, [run(0, green)], [run(1, green)])
    assert verdicts[-1].status is GateStatus.MISSING
    assert gate_exit_code(verdicts) is ExitCode.MISMATCH


def test_timings_that_do_not_count_are_shown_as_advisory():
    spec = replace(SPEC, timing_counts=False)
    verdict = timing_verdict(*timed(1.5), spec=spec)
    assert (verdict.status, verdict.advisory) == (GateStatus.REGRESSED, True)


def test_other_timings_are_advisory():
    verdicts = judge(SPEC, *timed(1.5, name="sweep.other.tpot_ms"))
    assert {one.metric: (one.status, one.advisory) for one in verdicts} == {
        TTFT: (GateStatus.MISSING, False),
        "sweep.other.tpot_ms": (GateStatus.REGRESSED, True),
    }


def test_selftest_alarms_rarely_and_detects_reliably():
    result = selftest(SelftestPlan(num_reports=300, seed=5))
    assert result.false_alarm_rate <= 0.01
    assert result.detection_rate >= 0.93
    assert result.misplaced_rate <= 0.01


def test_selftest_of_a_blind_plan_fails():
    result = selftest(SelftestPlan(num_reports=40, regression=0.01))
    assert result.detection_rate < 0.1
    assert not result.passed


def write_run(root, run_id, metrics, environment=None):
    clock = ManualClock(elapsed_ns=len(list(root.iterdir())) * 10**9)
    with new_run(
        root, command=["test"], environment=environment or {}, run_id=run_id, clock=clock
    ) as store:
        for metric in metrics:
            store.append("metric", metric.name, metric)
        return store.directory


def test_a_side_is_a_run_or_a_directory_of_runs(tmp_path):
    first = write_run(tmp_path, "b-first", [count("a.collectives", 2)], {"origin": "device"})
    write_run(tmp_path, "a-second", [count("a.collectives", 3)])
    (run_of,) = read_side(first)
    assert run_of.metrics["a.collectives"] == count("a.collectives", 2)
    assert run_of.environment == {"origin": "device"}
    assert [one.run_id for one in read_side(tmp_path)] == ["b-first", "a-second"]


def test_a_side_without_evidence_is_an_error(tmp_path):
    with pytest.raises(MissingEvidenceError, match="no such directory"):
        read_side(tmp_path / "absent")
    with pytest.raises(MissingEvidenceError, match=r"holds no metric\.jsonl"):
        read_side(tmp_path)


def test_a_metric_record_that_is_no_metric_is_named(tmp_path):
    folder = write_run(tmp_path, "run", [count("a.collectives", 2)])
    path = folder / "metric.jsonl"
    record = json.loads(path.read_text())
    record["payload"]["direction"] = "sideways"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError, match=r"metric\.jsonl: record 'a.collectives' is .*sideways"):
        read_side(folder)
