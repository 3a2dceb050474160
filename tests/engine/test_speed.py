"""The benchmark's function counts steps and refuses what has none."""

from __future__ import annotations

import pytest

from engine.speed import DecodeSpeed, measure_decode
from harness.core.errors import UsageError
from tests.engine.oracle import settings


def test_every_decode_step_is_timed_and_none_of_the_warm_up() -> None:
    speed = measure_decode(settings("steady_mtp"), prompt_len=5, num_tokens=4)
    assert len(speed.step_ms) == 3
    assert min(speed.step_ms) > 0
    assert speed.ttft_ms > 0
    assert speed.label == "exact cp=1 ops=references"


def test_tokens_per_second_are_those_of_the_median_step() -> None:
    speed = DecodeSpeed("x", 1, 9.0, (10.0, 1000.0, 20.0))
    assert speed.tokens_per_s == pytest.approx(50.0)


def test_a_single_token_has_no_step_time() -> None:
    with pytest.raises(UsageError, match="at least 2 tokens"):
        measure_decode(settings("steady_mtp"), num_tokens=1)
