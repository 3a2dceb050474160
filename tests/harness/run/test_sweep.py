"""The sweep procedure with fake engines: order, samples, resume, crash and interruption."""

import json

import pytest

from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError
from harness.core.latency import measure_requests
from harness.core.record import strict_json
from harness.core.results import PointStatus
from harness.core.sweep_spec import SweepSpec
from harness.run.sweep import prompt_seed, run_sweep
from tests.harness.fake_engine import FakeWorld, crash

SPEC = SweepSpec("test", input_lens=(4, 8, 16), output_len=5, cps=(1, 2), num_repeats=3, seed=3)


def points_of(spec=SPEC, max_model_len=64):
    return spec.points("ckpt", "0123", max_model_len)


def swept(world, spec=SPEC, **options):
    return list(run_sweep(spec, points_of(spec), world, **options))


def test_one_engine_per_cp_measures_every_point():
    world = FakeWorld()
    points = swept(world)
    assert [settings.cp for settings in world.opened] == [1, 2]
    assert world.closed == world.opened
    assert {point.status for point in points} == {PointStatus.OK}
    assert {point.key for point in points} == {plan.key for plan in points_of()}
    for point in points:
        samples = measure_requests(point.requests)
        assert samples.ttft_ms == (float(point.config["input_len"]),) * 3
        assert samples.tpot_ms == (10.0 * point.config["cp"],) * 3
        assert len(point.warmups) == 1
        assert point.counters == {"collectives_per_step": 20.0}


def test_lengths_are_interleaved_in_a_seeded_order_after_the_warm_ups():
    world = FakeWorld()
    points = swept(world)
    of_cp1 = [point for point in points if point.config["cp"] == 1]
    order = sorted(
        (request["order"], point.config["input_len"])
        for point in of_cp1
        for request in (*point.warmups, *point.requests)
    )
    lengths = [length for _, length in order]
    assert lengths[:3] == [4, 8, 16]
    assert sorted(lengths[3:]) == [4] * 3 + [8] * 3 + [16] * 3
    assert lengths[3:] != sorted(lengths[3:])
    assert [point.key for point in swept(FakeWorld())] == [point.key for point in points]


def test_every_request_keeps_the_shape_of_its_steps():
    (point,) = swept(FakeWorld(), SweepSpec("one", (4,), output_len=3, num_repeats=2))
    for request in point.requests:
        assert request["steps"] == [
            {"count": 1, "num_rows": 4, "padded_rows": 16, "context": 64, "path": "decode"},
            {"count": 2, "num_rows": 1, "padded_rows": 1, "context": 64, "path": "decode"},
        ]


def test_every_request_has_its_own_prompt():
    seeds = {prompt_seed(3, 16, repeat, slot) for repeat in range(-2, 4) for slot in range(4)}
    assert len(seeds) == 24


def test_concurrency_measures_a_wave_of_requests():
    spec = SweepSpec("waves", (4,), output_len=2, concurrency=2, num_warmups=3, num_repeats=2)
    (point,) = swept(FakeWorld(), spec)
    assert (len(point.requests), len(point.warmups)) == (4, 4)


def test_points_over_max_model_len_are_pruned_with_the_reason():
    points = list(run_sweep(SPEC, points_of(max_model_len=16), FakeWorld()))
    pruned = [point for point in points if point.status == PointStatus.PRUNED]
    assert [point.config["input_len"] for point in pruned] == [16, 16]
    assert pruned[0].message == "input 16 + output 5 = 21 tokens, over max_model_len 16"
    assert sum(point.status == PointStatus.OK for point in points) == 4


def test_a_sweep_without_a_point_to_run_is_refused():
    with pytest.raises(UsageError, match=r"no point can run.*over max_model_len 6"):
        list(run_sweep(SPEC, points_of(max_model_len=6), FakeWorld()))


def test_finished_points_are_not_run_again():
    done = {plan.key for plan in points_of()[:4]}
    world = FakeWorld()
    points = swept(world, finished=done)
    assert [point.key for point in points] != []
    assert {point.key for point in points} == {plan.key for plan in points_of()[4:]}
    assert [settings.cp for settings in world.opened] == [2]
    assert swept(FakeWorld(), finished={plan.key for plan in points_of()}) == []


def test_a_crash_costs_one_point_and_a_new_engine_measures_the_rest():
    world = FakeWorld()
    cp1 = EngineSettings("ckpt", cp=1)
    world.break_at(cp1, 5, crash())
    points = swept(world)
    crashed = [point for point in points if point.status == PointStatus.CRASHED]
    assert len(crashed) == 1
    assert "rank 2 died with signal 9" in crashed[0].message
    assert sum(point.status == PointStatus.OK for point in points) == 5
    assert [settings.cp for settings in world.opened] == [1, 1, 2]


def test_an_engine_that_does_not_open_costs_its_points_once():
    world = FakeWorld()
    world.break_at(EngineSettings("ckpt", cp=1), 0, crash())
    points = swept(world)
    assert [point.status for point in points] == [PointStatus.CRASHED] * 3 + [PointStatus.OK] * 3
    assert [settings.cp for settings in world.opened] == [2]


def test_a_request_with_too_few_tokens_fails_its_point_and_is_kept():
    points = swept(FakeWorld(num_missing_tokens=1))
    assert {point.status for point in points} == {PointStatus.FAILED}
    assert points[0].message == "3 of 3 requests failed: 4 tokens where 5 were asked for"
    assert len(points[0].requests) == 3


def test_counters_that_differ_between_repeats_fail_the_point():
    counts = iter(range(1000))

    class CountingWorld(FakeWorld):
        def note(self, settings, call):
            self.counters = {"collectives_per_step": float(next(counts))}
            super().note(settings, call)

    points = swept(CountingWorld())
    assert {point.status for point in points} == {PointStatus.FAILED}
    assert "counters per step differ" in points[0].message


def test_an_interruption_keeps_finished_points_and_closes_the_engine():
    world = FakeWorld()
    world.break_at(EngineSettings("ckpt", cp=2), 2, KeyboardInterrupt())
    kept = []

    def keep():
        for point in run_sweep(SPEC, points_of(), world):
            kept.append(point)

    with pytest.raises(KeyboardInterrupt):
        keep()
    assert len(kept) == 3
    assert world.closed == world.opened
    rest = swept(FakeWorld(), finished={point.key for point in kept})
    whole = swept(FakeWorld())
    assert {point.key for point in (*kept, *rest)} == {point.key for point in whole}


def test_a_point_is_plain_json():
    (point, *_) = swept(FakeWorld())
    body = json.loads(strict_json(point))
    assert body["requests"][0]["num_tokens"] == 5
