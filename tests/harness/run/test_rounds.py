"""When a point has enough repeats, and what may have spoiled it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.results import PointStatus
from harness.core.sweep_spec import PlannedPoint, SweepSpec
from harness.run.clock import ManualClock
from harness.run.other_work import OtherWork
from harness.run.rounds import Wave, measure_rounds, median_half_width


def request(ttft_ms: float) -> dict[str, Any]:
    sent = 1_000_000_000
    first = sent + round(ttft_ms * 1e6)
    return {
        "t_send_ns": sent,
        "token_ns": [first, first + 10_000_000],
        "finish_reason": "length",
    }


class Waves:
    """TTFTs in the order in which a point is measured; each repeat takes a second."""

    def __init__(self, ttfts_ms: list[float]) -> None:
        self.ttfts_ms = ttfts_ms
        self.clock = ManualClock()
        self.calls: list[tuple[int, int]] = []

    def __call__(self, point: PlannedPoint, repeat: int) -> Wave:
        place = sum(length == point.input_len and past >= 0 for length, past in self.calls)
        self.calls.append((point.input_len, repeat))
        self.clock.advance_ms(1000)
        return Wave([request(self.ttfts_ms[place % len(self.ttfts_ms)] if repeat >= 0 else 9e3)])


def measured(spec: SweepSpec, waves: Waves) -> list[Any]:
    points = spec.points("ckpt", "0123")
    return [
        done
        for _, done in measure_rounds(spec, points, waves, clock=waves.clock)
        if done is not None
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([5.0] * 5, None),  # P(all five on one side) is 1/16: no 95 % interval
        ([8.0, 9, 10, 11, 12, 13], (13 - 8) / 2 / 10.5),  # n = 6: smallest and largest
        ([8.0, 9, 10, 11, 12, 13, 14, 15, 16], (15 - 9) / 2 / 12),  # n = 9: second and eighth
        ([3.0] * 20, 0.0),
    ],
)
def test_the_interval_is_that_of_the_order_statistics(
    values: list[float], expected: float | None
) -> None:
    assert median_half_width(values) == (None if expected is None else pytest.approx(expected))


def test_without_a_goal_the_planned_repeats_are_made() -> None:
    spec = SweepSpec("plain", input_lens=(4, 8), output_len=2, num_repeats=3)
    waves = Waves([10.0])
    points = measured(spec, waves)
    assert [len(point.requests) for point in points] == [3, 3]
    assert sorted(waves.calls) == [(n, r) for n in (4, 8) for r in (-1, 0, 1, 2)]
    assert waves.calls[:2] == [(4, -1), (8, -1)]


def test_repeats_go_on_until_the_median_is_known_well_enough() -> None:
    spec = SweepSpec("goal", input_lens=(4,), output_len=2, num_repeats=3, interval_goal=0.05)
    steady = measured(spec, Waves([10.0]))[0]
    assert len(steady.requests) == 6  # the first count that has a 95 % interval
    noisy = measured(spec, Waves([10.0, 20.0]))[0]
    assert len(noisy.requests) == spec.max_repeats
    assert noisy.status == PointStatus.OK
    assert noisy.facts["num_repeats"] == 20


def test_a_budget_ends_the_repeats_of_all_points() -> None:
    spec = SweepSpec(
        "budget",
        input_lens=(4, 8),
        output_len=2,
        num_repeats=2,
        interval_goal=0.01,
        budget_s=11.5,
    )
    points = measured(spec, Waves([10.0, 20.0, 30.0]))
    assert sum(len(point.requests) for point in points) + 2 in (12, 13)
    assert all(len(point.requests) >= 2 for point in points)


def test_a_first_repeat_that_stands_out_is_flagged() -> None:
    spec = SweepSpec("cold", input_lens=(4,), output_len=2, num_repeats=4)
    cold = measured(spec, Waves([50.0, 10.0, 10.0, 10.0]))[0]
    assert cold.facts["first_repeat_ratio"] == pytest.approx(5.0)
    assert cold.facts["first_repeat_differs"] == 1.0
    warm = measured(spec, Waves([11.0, 10.0, 10.0, 10.0]))[0]
    assert warm.facts["first_repeat_differs"] == 0.0
    assert warm.facts["load_average"] >= 0.0


def test_counters_that_differ_between_requests_fail_the_point() -> None:
    spec = SweepSpec("counts", input_lens=(4,), output_len=2, num_repeats=2)

    def wave(_: PlannedPoint, repeat: int) -> Wave:
        return Wave([request(10.0)], counters=[{"collectives": float(repeat)}])

    points = [d for _, d in measure_rounds(spec, spec.points("c", "0"), wave) if d is not None]
    assert points[0].status == PointStatus.FAILED
    assert "counters per step differ" in points[0].message
    assert "collectives is 0 and 1" in points[0].message


def test_counters_of_requests_served_together_may_differ_and_are_then_left_out() -> None:
    spec = SweepSpec("together", input_lens=(4,), output_len=2, num_repeats=2)

    def wave(_: PlannedPoint, repeat: int) -> Wave:
        counters = [{"collectives": 8.0, "launches": float(repeat)}]
        return Wave([request(10.0)], counters, is_alone=False)

    points = [d for _, d in measure_rounds(spec, spec.points("c", "0"), wave) if d is not None]
    assert points[0].status == PointStatus.OK
    assert points[0].counters == {"collectives": 8.0}


@pytest.mark.parametrize(
    ("counts", "expected"), [([1, 2], 3), ([0, 0], 0), ([1, None], None), ([None, None], None)]
)
def test_compile_events_are_known_only_where_every_repeat_tells(
    counts: list[int | None], expected: int | None
) -> None:
    spec = SweepSpec("compiles", input_lens=(4,), output_len=2, num_repeats=2)

    def wave(_: PlannedPoint, repeat: int) -> Wave:
        # What a warm-up compiled is excluded.
        count = 9 if repeat < 0 else counts[repeat]
        told = {"moe_overflows": 2.0} if count is None else {"compile_events": float(count)}
        return Wave([request(10.0)], totals=told)

    points = [d for _, d in measure_rounds(spec, spec.points("c", "0"), wave) if d is not None]
    assert points[0].compile_events == expected
    assert points[0].counters == ({"moe_overflows": 4.0} if counts == [None, None] else {})


class _Others(OtherWork):
    def __init__(self, share: float | None) -> None:
        super().__init__()
        self.stretches: list[str] = []
        self._told = share

    def start(self) -> None:
        self.stretches.append("start")

    def stop(self) -> None:
        self.stretches.append("stop")

    @property
    def share(self) -> float | None:
        return self._told


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.30, {"other_work_share": 0.30, "is_contaminated": 1.0}),
        (0.01, {"other_work_share": 0.01, "is_contaminated": 0.0}),
        (None, {}),
    ],
)
def test_other_work_on_the_machine_is_flagged(
    share: float | None, expected: dict[str, float]
) -> None:
    spec = SweepSpec("busy", input_lens=(4,), output_len=2, num_repeats=3)
    others = _Others(share)
    rounds = measure_rounds(
        spec, spec.points("c", "0"), lambda *_: Wave([request(10.0)]), watch=lambda: others
    )
    (point,) = [done for _, done in rounds if done is not None]
    names = ("other_work_share", "is_contaminated")
    assert {name: point.facts[name] for name in names if name in point.facts} == expected
    # Warm-ups are not watched.
    assert others.stretches == ["start", "stop"] * 3


def test_logits_that_are_no_numbers_fail_the_point() -> None:
    spec = SweepSpec("damaged", input_lens=(4,), output_len=2, num_repeats=1)

    def wave(_: PlannedPoint, _repeat: int) -> Wave:
        return Wave([request(10.0)], counters=[{"nonfinite_position": 7.0}])

    points = [d for _, d in measure_rounds(spec, spec.points("c", "0"), wave) if d is not None]
    assert points[0].status == PointStatus.FAILED
    assert "logits not finite at position 7" in points[0].message
