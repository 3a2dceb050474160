"""Rates and peaks of a set of requests (measurement.md §3), from the same records as latencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.core.latency import failure_of, latency_of

__all__ = ["Slo", "Throughput", "measure_throughput"]

_NS_PER_S = 1e9
_STEADY_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits a good request meets, in milliseconds; None asks for nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def is_met(self, request: Mapping[str, Any]) -> bool:
        """Whether a completed request meets every limit; TPOT does not apply to one token."""
        latency = latency_of(request)
        pairs = (
            (self.ttft_ms, latency.ttft_ms),
            (self.tpot_ms, latency.tpot_ms),
            (self.e2el_ms, latency.e2el_ms),
        )
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates per second; None where nothing was measured.

    Attributes:
        duration_s: D, from the first send to the last read of a response.
        request_per_s, output_per_s, total_per_s: completed requests, their output tokens, and
            prompt plus output tokens, over D.
        steady_output_per_s: output tokens per second while at least 95 % of the concurrency was
            in flight; None where that never was.
        good_per_s: completed requests that meet the SLO over D; None without an SLO.
        peak_output_per_s: most tokens within any one second.
        peak_concurrency: most requests in flight at once.
    """

    duration_s: float | None
    num_completed: int
    num_failed: int
    num_input_tokens: int
    num_output_tokens: int
    request_per_s: float | None
    output_per_s: float | None
    total_per_s: float | None
    steady_output_per_s: float | None
    good_per_s: float | None
    peak_output_per_s: float | None
    peak_concurrency: int


def measure_throughput(
    requests: Iterable[Mapping[str, Any]], *, concurrency: int = 0, slo: Slo | None = None
) -> Throughput:
    """Rates of one run of requests.

    Args:
        concurrency: asked for; 0 leaves the steady window out.
    """
    everything = list(requests)
    completed = [request for request in everything if failure_of(request) is None]
    num_input = sum(request.get("prompt_len") or 0 for request in completed)
    num_output = sum(latency_of(request).num_tokens for request in completed)
    spans = [span for request in everything if (span := _span(request)) is not None]
    duration_s = None
    if spans and completed:
        duration_s = (max(end for _, end in spans) - min(start for start, _ in spans)) / _NS_PER_S
    good = sum(slo.is_met(request) for request in completed) if slo is not None else 0

    def rate(count: float) -> float | None:
        return count / duration_s if duration_s else None

    stamps = sorted(stamp for request in completed for stamp in request["token_ns"])
    return Throughput(
        duration_s=duration_s,
        num_completed=len(completed),
        num_failed=len(everything) - len(completed),
        num_input_tokens=num_input,
        num_output_tokens=num_output,
        request_per_s=rate(len(completed)),
        output_per_s=rate(num_output),
        total_per_s=rate(num_input + num_output),
        steady_output_per_s=_steady_rate(spans, stamps, concurrency),
        good_per_s=rate(good) if slo is not None else None,
        peak_output_per_s=_peak_per_second(stamps),
        peak_concurrency=_peak_concurrency(spans),
    )


def _span(request: Mapping[str, Any]) -> tuple[int, int] | None:
    """From the send to the last read; the last token where no read is recorded."""
    send = request.get("t_send_ns")
    stamps = request.get("token_ns") or ()
    end = request.get("t_last_read_ns") or (stamps[-1] if stamps else None)
    return None if send is None or end is None else (send, end)


def _changes(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(time, +1 or -1) in order; at equal times an end comes before a start."""
    return sorted(change for start, end in spans for change in ((start, 1), (end, -1)))


def _peak_concurrency(spans: Sequence[tuple[int, int]]) -> int:
    active = peak = 0
    for _, step in _changes(spans):
        active += step
        peak = max(peak, active)
    return peak


def _peak_per_second(stamps: Sequence[int]) -> float | None:
    """Most stamps in a half-open window of one second."""
    peak = first = 0
    for place, stamp in enumerate(stamps):
        while stamp - stamps[first] >= _NS_PER_S:
            first += 1
        peak = max(peak, place - first + 1)
    return float(peak) if stamps else None


def _steady_rate(
    spans: Sequence[tuple[int, int]], stamps: Sequence[int], concurrency: int
) -> float | None:
    if concurrency < 1:
        return None
    active, windows = 0, []
    for (now, step), (following, _) in pairwise(_changes(spans)):
        active += step
        if active >= _STEADY_SHARE * concurrency and following > now:
            windows.append((now, following))
    length_ns = sum(end - start for start, end in windows)
    if not length_ns:
        return None
    inside = sum(start <= stamp < end for start, end in windows for stamp in stamps)
    return inside / (length_ns / _NS_PER_S)
