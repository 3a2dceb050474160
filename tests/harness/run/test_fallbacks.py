"""Ops that left the device are named, and fail what they would falsify."""

from __future__ import annotations

import pytest

from harness.core.results import PointStatus
from harness.core.sweep_spec import SweepSpec
from harness.run.fallbacks import allowed_by_environment, fallback_failure, fallbacks_of
from harness.run.sweep import run_sweep
from tests.harness.fake_engine import FakeWorld

COUNTERS = {"collectives": 20.0, "fallbacks": 5.0, "fallback aten::sort": 4.0, "fallback x": 1.0}


def test_counters_tell_which_op_left_how_often() -> None:
    assert fallbacks_of(COUNTERS) == {"aten::sort": 4, "x": 1}
    assert fallbacks_of({"collectives": 20.0}) == {}


def test_every_op_that_was_not_allowed_is_named() -> None:
    assert fallback_failure(COUNTERS, ("aten::sort", "x")) == ""
    one = fallback_failure(COUNTERS, ("x",))
    assert "aten::sort (4 a step)" in one
    assert "x (1" not in one


def test_judges_read_what_is_allowed_from_their_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_HARNESS_ALLOW_FALLBACKS", "aten::sort,x")
    assert allowed_by_environment() == ("aten::sort", "x")


@pytest.mark.parametrize(
    ("allowed", "status"),
    [
        ((), PointStatus.FAILED),
        (("aten::sort",), PointStatus.FAILED),
        (("aten::sort", "x"), PointStatus.OK),
    ],
)
def test_a_sweep_fails_on_a_fallback_that_nobody_allowed(
    allowed: tuple[str, ...], status: PointStatus
) -> None:
    engine = {"allowed_fallbacks": allowed, "device": "neuron"}
    spec = SweepSpec("test", input_lens=(4,), output_len=3, engine=engine)
    (point,) = run_sweep(spec, spec.points("ckpt", "0123", 64), FakeWorld(counters=COUNTERS))
    assert point.status is status
    assert point.config["allowed_fallbacks"] == allowed
