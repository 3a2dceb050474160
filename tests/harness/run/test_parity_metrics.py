"""Counts of statuses and counters become exact metrics."""

from __future__ import annotations

from harness.core.metric import Direction, MetricKind
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.parity_metrics import parity_metrics


def _result(op: str, seed: int, status: OpStatus, **counters: float) -> ParityResult:
    return ParityResult(f"{op}/s{seed}", op, "interpret", status, "why", counters=counters)


def test_statuses_are_counted_and_counters_summed_or_maximised_an_op() -> None:
    results = [
        _result("rope", 0, OpStatus.TIMEOUT, instructions=5, sbuf_peak_bytes=100),
        _result("rope", 1, OpStatus.TIMEOUT, instructions=7, sbuf_peak_bytes=60),
        _result("rms_norm", 0, OpStatus.UNSUPPORTED),
    ]
    metrics = parity_metrics(results, "tiny")
    assert {metric.name: (metric.values, metric.unit) for metric in metrics} == {
        "parity.tiny.rms_norm.UNSUPPORTED": ((1.0,), "1"),
        "parity.tiny.rope.TIMEOUT": ((2.0,), "1"),
        "parity.tiny.rope.instructions": ((12.0,), "1"),
        "parity.tiny.rope.sbuf_peak_bytes": ((100.0,), "bytes"),
    }
    assert {metric.kind for metric in metrics} == {MetricKind.DETERMINISTIC}
    assert {metric.direction for metric in metrics} == {Direction.EQUAL}
