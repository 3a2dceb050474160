"""Metrics of records: names, units, directions, one value a run."""

from __future__ import annotations

import pytest

from harness.core.metric import Direction, MetricKind
from harness.core.record import RunRecord
from harness.run.metrics import metric_from_payload, metrics_of_run, setting_path

MS = 1_000_000
CONFIG = {
    "numerics": "fast",
    "cp": 2,
    "ep": 0,
    "ops": ["references.op_table:TABLE"],
    "input_len": 16,
    "output_len": 3,
    "concurrency": 1,
}


def record(kind, key, payload):
    return RunRecord(kind, "run", key, "2026-01-01T00:00:00", {}, payload)


def request(first_ms, last_ms):
    stamps = [first_ms * MS, (first_ms + last_ms) // 2 * MS, last_ms * MS]
    return {"t_send_ns": 0, "token_ns": stamps, "finish_reason": "length"}


def named(parity=(), tokens=(), sweep=()):
    return {metric.name: metric for metric in metrics_of_run(parity, tokens, sweep)}


def test_parity_gives_status_and_counts():
    payload = {
        "case_id": "rms_norm/T1-d2/bfloat16/s0",
        "status": "PASS",
        "counters": {"instructions": 12.0, "dma_bytes": 512.0},
    }
    found = named(parity=[record("parity", "x", payload)])
    path = "parity.rms_norm/T1-d2/bfloat16/s0"
    assert list(found) == [f"{path}.status", f"{path}.dma_bytes", f"{path}.instructions"]
    status, moved = found[f"{path}.status"], found[f"{path}.dma_bytes"]
    assert (status.values, status.unit, status.direction) == (("PASS",), "status", Direction.EQUAL)
    assert (moved.values, moved.unit, moved.direction) == ((512.0,), "bytes", Direction.LOWER)
    assert {one.kind for one in found.values()} == {MetricKind.DETERMINISTIC}


def test_tokens_are_named_by_pair_and_prompt():
    payload = {
        "status": "MATCH",
        "counters": {
            "collectives": 20.0,
            "num_window_wraps": 7.0,
            "min_blocks_excluded_share": 0.5,
        },
    }
    found = named(tokens=[record("tokens", "exact-cp2/long", payload)])
    assert found["tokens.exact-cp2.long.status"].values == ("MATCH",)
    # An extreme of the data is held against the prompt's own demand.
    assert "tokens.exact-cp2.long.min_blocks_excluded_share" not in found
    assert found["tokens.exact-cp2.long.collectives"].direction is Direction.LOWER
    # More or fewer wraps is another experiment, not a better one.
    assert found["tokens.exact-cp2.long.num_window_wraps"].direction is Direction.EQUAL


def test_a_sweep_point_gives_medians_of_its_run():
    payload = {
        "status": "OK",
        "config": CONFIG,
        "requests": [request(10, 30), request(20, 60), request(90, 190)],
        "counters": {"collectives": 22.0},
    }
    found = named(sweep=[record("sweep", "k", payload)])
    path = "sweep.fast.cp=2.in=16.out=3"
    assert found[f"{path}.ttft_ms"].values == (20.0,)
    assert found[f"{path}.tpot_ms"].values == (20.0,)
    assert found[f"{path}.e2el_ms"].values == (60.0,)
    assert found[f"{path}.ttft_ms"].kind is MetricKind.TIMING
    assert found[f"{path}.collectives"].kind is MetricKind.DETERMINISTIC


def test_a_point_that_failed_gives_its_status_and_no_timing():
    payload = {"status": "CRASHED", "config": CONFIG, "requests": []}
    found = named(sweep=[record("sweep", "k", payload)])
    assert list(found) == ["sweep.fast.cp=2.in=16.out=3.status"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "fast.cp=2"),
        ({"ep": 2}, "fast.cp=2"),
        ({"ep": 4}, "fast.cp=2.ep=4"),
        ({"ops": ["references.op_table:TABLE", "kernels.op_table:TABLE"]}, "fast.cp=2.ops=kernels"),
        ({"context_buckets": []}, "fast.cp=2"),
        ({"context_buckets": [64, 128]}, "fast.cp=2.buckets=64+128"),
        ({"speculative": "dspark"}, "fast.cp=2.dspark"),
        ({"prefill": "as-decode", "enforce_eager": True, "moe_capacity": 0}, "fast.cp=2"),
        ({"prefill": "attention", "enforce_eager": False}, "fast.cp=2.prefill=attention.compiled"),
        ({"enforce_eager": False, "compile_backend": "aten"}, "fast.cp=2.compiled=aten"),
        ({"moe_capacity": 4}, "fast.cp=2.capacity=4"),
    ],
)
def test_setting_paths(changes, path):
    assert setting_path({**CONFIG, **changes}) == path


def test_two_records_of_one_metric_are_refused():
    one = record("tokens", "pair/short", {"status": "MATCH"})
    with pytest.raises(ValueError, match="made by two records"):
        metrics_of_run([], [one, one], [])


def test_a_metric_survives_its_record():
    found = named(tokens=[record("tokens", "a/b", {"status": "MATCH"})])
    (metric,) = found.values()
    payload = {
        "name": metric.name,
        "values": ["MATCH"],
        "unit": "status",
        "direction": "equal",
        "kind": "deterministic",
    }
    assert metric_from_payload(payload) == metric
