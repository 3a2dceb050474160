"""Rates and peaks on hand-computed numbers."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.throughput import Slo, measure_throughput

S = 1_000_000_000


def request(
    send_s: float, *token_s: float, last_read_s: float = 0.0, **more: Any
) -> dict[str, Any]:
    return {
        "t_send_ns": round(send_s * S),
        "token_ns": [round(value * S) for value in token_s],
        "t_last_read_ns": round((last_read_s or (token_s[-1] if token_s else 0)) * S) or None,
        "prompt_len": 10,
        "finish_reason": "length",
        **more,
    }


A = request(0.0, 1.0, 1.5, 2.0, last_read_s=2.5)
B = request(1.0, 2.0, 2.2, 2.4, 2.6, last_read_s=4.0)
FAILED = request(0.5, 0.6, error="HTTP 500")


def test_rates_are_counts_over_first_send_to_last_read() -> None:
    found = measure_throughput([A, B, FAILED])
    assert found.duration_s == 4.0
    assert (found.num_completed, found.num_failed) == (2, 1)
    assert found.request_per_s == 0.5
    assert found.output_per_s == 7 / 4
    assert found.total_per_s == 27 / 4
    assert found.good_per_s is None
    assert found.steady_output_per_s is None


def test_peaks_are_exact() -> None:
    found = measure_throughput([A, B, FAILED])
    # Tokens at 2.0, 2.0, 2.2, 2.4, 2.6 lie within one second; 1.5 + 1 s excludes 2.6.
    assert found.peak_output_per_s == 5.0
    assert found.peak_concurrency == 2
    apart = measure_throughput([request(0.0, 1.0), request(1.0, 2.0)])
    assert apart.peak_concurrency == 1
    assert apart.peak_output_per_s == 1.0


def test_the_steady_window_counts_only_full_concurrency() -> None:
    # Both in flight from 1.0 to 2.5: tokens 1.0 1.5 2.0 and 2.0 2.2 2.4 lie inside.
    assert measure_throughput([A, B], concurrency=2).steady_output_per_s == 6 / 1.5
    assert measure_throughput([A, B], concurrency=3).steady_output_per_s is None


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), 2),
        (Slo(ttft_ms=1000.0), 2),
        (Slo(ttft_ms=999.0), 0),
        (Slo(tpot_ms=300.0), 1),
        (Slo(e2el_ms=1700.0), 1),
        (Slo(ttft_ms=1000.0, tpot_ms=500.0, e2el_ms=2000.0), 2),
    ],
)
def test_goodput_counts_completed_requests_within_every_limit(slo: Slo, good: int) -> None:
    assert measure_throughput([A, B, FAILED], slo=slo).good_per_s == good / 4


def test_a_single_token_has_no_tpot_to_miss() -> None:
    one = request(0.0, 1.0)
    assert measure_throughput([one], slo=Slo(tpot_ms=0.001)).good_per_s == 1.0


def test_nothing_completed_is_null_and_never_zero() -> None:
    found = measure_throughput([FAILED])
    assert found.duration_s is None
    assert found.request_per_s is None
    assert found.output_per_s is None
    assert found.peak_output_per_s is None
    assert measure_throughput([]).peak_concurrency == 0
