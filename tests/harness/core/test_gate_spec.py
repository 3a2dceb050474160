"""A gate names few primary metrics exactly and judges something."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.core.gate_spec import MAX_PRIMARY_METRICS, GateSpec, PrimaryMetric

TTFT = PrimaryMetric("sweep.fast.cp=1.in=16.out=16.ttft_ms", floor=2.0)


def test_patterns_gate_deterministic_metrics_and_names_gate_timings() -> None:
    gate = GateSpec("g", deterministic=("parity.*", "sweep.*.status"), primary=(TTFT,))
    assert gate.gates_exactly("parity.rms_norm/T2-d32/bfloat16/s0.status")
    assert gate.gates_exactly("sweep.fast.cp=1.in=16.out=16.status")
    assert not gate.gates_exactly("sweep.fast.cp=1.in=16.out=16.launches")
    assert not gate.gates_exactly("Parity.x.status")
    assert gate.primary_named(TTFT.name) is TTFT
    assert gate.primary_named("sweep.fast.cp=2.in=16.out=16.ttft_ms") is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "judges nothing"),
        ({"primary": (TTFT, TTFT)}, "twice"),
        ({"primary": (TTFT,), "min_pairs": 1}, "min_pairs=1"),
        ({"primary": (TTFT,), "alpha": 1.0}, "alpha=1.0"),
        (
            {"primary": tuple(PrimaryMetric(f"m{i}", 1.0) for i in range(MAX_PRIMARY_METRICS + 1))},
            "at most 8",
        ),
    ],
)
def test_an_impossible_gate_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GateSpec("g", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "sweep.*.ttft_ms", "floor": 1.0}, "named exactly"),
        ({"name": "", "floor": 1.0}, "named exactly"),
        ({"name": "m", "floor": -1.0}, "floor=-1.0"),
        ({"name": "m", "floor": 1.0, "threshold": 0.0}, "threshold=0.0"),
        ({"name": "m", "floor": 1.0, "threshold": 1.0}, "threshold=1.0"),
    ],
)
def test_an_impossible_metric_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PrimaryMetric(**fields)
