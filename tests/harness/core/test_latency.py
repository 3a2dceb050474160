"""Latency formulas on hand-computed numbers."""

import pytest

from harness.core.latency import (
    LatencyStats,
    Samples,
    failure_of,
    latency_of,
    measure_requests,
    percentile_name,
)

MS = 1_000_000


def request(token_ms, send_ms=100, **fields):
    return {
        "t_send_ns": send_ms * MS,
        "token_ns": [stamp * MS for stamp in token_ms],
        "finish_reason": "length",
        **fields,
    }


def test_one_token_a_chunk():
    latency = latency_of(request([150, 160, 190, 200]))
    assert latency.ttft_ms == 50
    assert latency.tpot_ms == pytest.approx(50 / 3)
    assert latency.itl_ms == (10, 30, 10)
    assert latency.itl_per_token_ms == (10, 30, 10)
    assert latency.e2el_ms == 100
    assert latency.queue_ms is None
    assert latency.num_tokens == 4


def test_tokens_of_one_chunk_share_a_stamp():
    latency = latency_of(request([150, 160, 160, 160, 190]))
    assert latency.itl_ms == (10, 30)
    assert latency.itl_per_token_ms == pytest.approx((10 / 3, 10 / 3, 10 / 3, 30))
    assert latency.tpot_ms == 10


def test_a_single_token_has_no_tpot():
    latency = latency_of(request([150]))
    assert latency.tpot_ms is None
    assert latency.itl_ms == ()
    assert latency.e2el_ms == latency.ttft_ms == 50


def test_usage_counts_the_tokens_where_the_source_says_so():
    counted = request([150, 250], num_tokens=5, count_source="usage")
    assert latency_of(counted).tpot_ms == 25
    assert latency_of({**counted, "count_source": "chunks"}).tpot_ms == 100


def test_queue_time_is_apart_from_ttft():
    latency = latency_of(request([150], t_arr_ns=40 * MS))
    assert latency.queue_ms == 60
    assert latency.ttft_ms == 50


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ns": []}, "no token"),
        ({"finish_reason": None}, "no finish reason"),
        ({"error": "HTTP 500"}, "HTTP 500"),
        ({"token_ns": [90 * MS]}, "backwards"),
        ({"token_ns": [160 * MS, 150 * MS]}, "backwards"),
        ({"ignore_eos": True, "num_requested": 3}, "2 tokens where 3"),
        ({"prompt_len": 15, "prompt_len_requested": 16}, "prompt of 15 tokens where 16"),
    ],
)
def test_what_makes_a_request_fail(changes, reason):
    broken = {**request([150, 160]), **changes}
    assert reason in failure_of(broken)
    with pytest.raises(ValueError, match="failed request"):
        latency_of(broken)


def test_failed_requests_are_counted_beside_the_samples():
    samples = measure_requests([request([150, 160]), request([]), request([110])])
    assert samples.ttft_ms == (50, 10)
    assert samples.tpot_ms == (10,)
    assert (samples.num_completed, samples.num_failed) == (2, 1)
    assert samples.failures == ("no token",)
    assert measure_requests([]) == Samples()


def test_summary_is_numpy_linear_with_population_deviation():
    stats = LatencyStats.of([1.0, 2.0, 3.0, 4.0], percentiles=(25, 50, 99, 99.9))
    assert (stats.count, stats.mean_ms, stats.median_ms) == (4, 2.5, 2.5)
    assert stats.std_ms == pytest.approx(1.25**0.5)
    assert (stats.min_ms, stats.max_ms) == (1.0, 4.0)
    assert stats.percentiles == pytest.approx(
        {"p25": 1.75, "p50": 2.5, "p99": 3.97, "p99.9": 3.997}
    )
    assert stats.few_for_p99


def test_nothing_measured_is_null_and_a_nan_is_refused():
    assert LatencyStats.of([]) is None
    with pytest.raises(ValueError, match="not finite"):
        LatencyStats.of([1.0, float("nan")])


def test_p99_is_flagged_below_a_hundred_samples():
    assert LatencyStats.of([1.0] * 99).few_for_p99
    assert not LatencyStats.of([1.0] * 100).few_for_p99


def test_percentile_names():
    assert [percentile_name(rank) for rank in (50, 99.0, 99.9)] == ["p50", "p99", "p99.9"]
