"""The two sides of an A/B comparison: order of turns, shared names, what is primary."""

import pytest

from harness.core.errors import UsageError
from harness.core.metric import Direction, Metric, MetricKind
from harness.core.status import GateStatus
from harness.run.environment import fingerprint
from harness.run.gates import judge
from harness.run.interleave import paired_spec, read_interleaved, turns
from harness.run.store import new_run

# Ten pairs; the candidate is a tenth slower in all of them, with some noise.
BASE_MS = [10.0, 10.1, 9.9, 10.05, 9.95, 10.2, 10.0, 9.9, 10.1, 10.0]


def timing(name, value):
    return Metric(name, (value,), "ms", Direction.LOWER, MetricKind.TIMING)


def write(root, side, settings, values):
    environment = fingerprint(backend="")
    for number, value in enumerate(values):
        with new_run(root / side, command=["x"], environment=environment) as store:
            for setting in settings:
                name = f"sweep.{setting}.in=8.out=4.ttft_ms"
                store.append("metric", name, timing(name, value))
        yield number


def measured(root, base, candidate, factor):
    """Write both sides in turns."""
    for _ in zip(
        write(root, "baseline", base, BASE_MS),
        write(root, "candidate", candidate, [factor * one for one in BASE_MS]),
        strict=True,
    ):
        pass
    return read_interleaved(root)


def test_within_pairs_the_first_side_alternates():
    assert list(turns(2)) == [
        (0, "baseline"),
        (0, "candidate"),
        (1, "candidate"),
        (1, "baseline"),
    ]
    order = [side for _, side in turns(10)]
    assert order[::2].count("baseline") == order[1::2].count("baseline") == 5


@pytest.mark.parametrize(
    ("factor", "status"),
    [(1.1, GateStatus.REGRESSED), (0.9, GateStatus.IMPROVED), (1.0, GateStatus.PASS)],
)
def test_two_settings_are_compared_point_by_point(tmp_path, factor, status):
    base, candidate = measured(tmp_path, ["fast.cp=1"], ["fast.cp=2"], factor)
    (verdict,) = judge(paired_spec(base, 0.05), base, candidate)
    assert verdict.metric == "sweep.in=8.out=4.ttft_ms"
    assert (verdict.status, verdict.num_pairs) == (status, 10)
    assert verdict.effect == pytest.approx(factor - 1, abs=1e-6)


def test_the_same_settings_of_two_checkouts_keep_their_names(tmp_path):
    both = ["fast.cp=1", "fast.cp=2"]
    base, candidate = measured(tmp_path, both, both, 1.1)
    names = {one.metric for one in judge(paired_spec(base, 0.05), base, candidate)}
    assert names == {f"sweep.{one}.in=8.out=4.ttft_ms" for one in both}


def test_several_settings_against_others_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"compare one setting with one other"):
        measured(tmp_path, ["fast.cp=1", "fast.cp=2"], ["fast.cp=4"], 1.0)


def test_nine_pairs_are_inconclusive(tmp_path):
    base, candidate = measured(tmp_path, ["fast.cp=1"], ["fast.cp=2"], 1.5)
    (verdict,) = judge(paired_spec(base, 0.05), base[:9], candidate[:9])
    assert verdict.status is GateStatus.INCONCLUSIVE


def test_nothing_measured_is_refused():
    with pytest.raises(UsageError, match="nothing to compare"):
        paired_spec((), 0.05)
