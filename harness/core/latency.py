"""Latency of requests from raw time stamps (measurement.md §3): one function for every source.

A request is the mapping that `SweepPoint.requests` holds. Tokens that arrive in one chunk share
one time stamp, so the chunks c_k and their token counts m_k are read off `token_ns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np

__all__ = [
    "DEFAULT_PERCENTILES",
    "LatencyStats",
    "RequestLatency",
    "Samples",
    "failure_of",
    "latency_of",
    "measure_requests",
    "percentile_name",
]

DEFAULT_PERCENTILES = (50.0, 90.0, 95.0, 99.0)
# Below so many samples a 99th percentile is an interpolation between the two largest values.
_ENOUGH_FOR_P99 = 100
_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """Latencies of one completed request.

    Attributes:
        ttft_ms: first token-bearing chunk minus send.
        tpot_ms: (last - first) / (n - 1); None where n < 2.
        itl_ms: gaps between token-bearing chunks.
        itl_per_token_ms: each gap divided by its chunk's tokens, once a token.
        e2el_ms: last token-bearing chunk minus send.
        queue_ms: send minus intended arrival; None where no arrival is known.
        num_tokens: n, as `count_source` of the request says.
    """

    ttft_ms: float
    tpot_ms: float | None
    itl_ms: tuple[float, ...]
    itl_per_token_ms: tuple[float, ...]
    e2el_ms: float
    queue_ms: float | None
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Pooled latencies of the completed requests of one point, in milliseconds.

    `ttft_ms` and `e2el_ms` have one entry a completed request, `tpot_ms` one a request of at
    least two tokens, the ITLs one a gap or token. Failed requests are only counted.
    """

    ttft_ms: tuple[float, ...] = ()
    tpot_ms: tuple[float, ...] = ()
    itl_ms: tuple[float, ...] = ()
    itl_per_token_ms: tuple[float, ...] = ()
    e2el_ms: tuple[float, ...] = ()
    queue_ms: tuple[float, ...] = ()
    num_completed: int = 0
    num_failed: int = 0
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LatencyStats:
    """Summary of one metric; numpy's linear percentiles, population standard deviation.

    Attributes:
        percentiles: "p50", "p99", "p99.9" -> value.
        few_for_p99: fewer than 100 samples, so p99 and beyond are interpolated.
    """

    count: int
    mean_ms: float
    median_ms: float
    std_ms: float
    min_ms: float
    max_ms: float
    percentiles: Mapping[str, float] = field(default_factory=dict)

    @property
    def few_for_p99(self) -> bool:
        return self.count < _ENOUGH_FOR_P99

    @classmethod
    def of(
        cls, values_ms: Sequence[float], percentiles: Iterable[float] = DEFAULT_PERCENTILES
    ) -> LatencyStats | None:
        """Summarise; None where nothing was measured.

        Raises:
            ValueError: a sample is not finite or a percentile lies outside [0, 100].
        """
        if not values_ms:
            return None
        values = np.asarray(values_ms, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("a latency sample is not finite")
        return cls(
            count=values.size,
            mean_ms=float(values.mean()),
            median_ms=float(np.median(values)),
            std_ms=float(values.std()),
            min_ms=float(values.min()),
            max_ms=float(values.max()),
            percentiles={
                percentile_name(rank): float(np.percentile(values, rank)) for rank in percentiles
            },
        )


def percentile_name(rank: float) -> str:
    """ "p99" for 99.0, "p99.9" for 99.9."""
    return f"p{int(rank)}" if float(rank).is_integer() else f"p{rank}"


def failure_of(request: Mapping[str, Any]) -> str | None:
    """Why a request does not count as completed, None where it does.

    A request succeeds only with at least one token, a finish reason, stamps in order, the prompt
    length that was asked for and, under ignore_eos, exactly the tokens asked for. A server that
    sends no usage does not tell the prompt length it served: `prompt_len` is then null.
    """
    stamps = request.get("token_ns") or ()
    if request.get("error"):
        return str(request["error"])
    if not stamps:
        return "no token"
    if not request.get("finish_reason"):
        return "no finish reason"
    if stamps[0] < request["t_send_ns"] or any(late < early for early, late in pairwise(stamps)):
        return "time stamps run backwards"
    asked = request.get("num_requested")
    if request.get("ignore_eos") and asked is not None and _num_tokens(request) != asked:
        return f"{_num_tokens(request)} tokens where {asked} were asked for"
    prompt_asked, prompt_served = request.get("prompt_len_requested"), request.get("prompt_len")
    if None not in (prompt_asked, prompt_served) and prompt_asked != prompt_served:
        return f"prompt of {prompt_served} tokens where {prompt_asked} were sent"
    return None


def latency_of(request: Mapping[str, Any]) -> RequestLatency:
    """Latencies of one completed request.

    Raises:
        ValueError: the request failed (see `failure_of`).
    """
    failure = failure_of(request)
    if failure is not None:
        raise ValueError(f"a failed request has no latency: {failure}")
    send = request["t_send_ns"]
    chunks = [(stamp, len(list(group))) for stamp, group in groupby(request["token_ns"])]
    gaps = [((chunk[0] - before[0]) / _NS_PER_MS, chunk[1]) for before, chunk in pairwise(chunks)]
    first, last, num_tokens = chunks[0][0], chunks[-1][0], _num_tokens(request)
    arrival = request.get("t_arr_ns")
    return RequestLatency(
        ttft_ms=(first - send) / _NS_PER_MS,
        tpot_ms=(last - first) / _NS_PER_MS / (num_tokens - 1) if num_tokens >= 2 else None,
        itl_ms=tuple(gap for gap, _ in gaps),
        itl_per_token_ms=tuple(gap / count for gap, count in gaps for _ in range(count)),
        e2el_ms=(last - send) / _NS_PER_MS,
        queue_ms=None if arrival is None else (send - arrival) / _NS_PER_MS,
        num_tokens=num_tokens,
    )


def measure_requests(requests: Iterable[Mapping[str, Any]]) -> Samples:
    """Pool the latencies of a point's measured requests; failed ones are counted beside them."""
    completed: list[RequestLatency] = []
    failures: list[str] = []
    for request in requests:
        failure = failure_of(request)
        if failure is None:
            completed.append(latency_of(request))
        else:
            failures.append(failure)
    return Samples(
        ttft_ms=tuple(one.ttft_ms for one in completed),
        tpot_ms=tuple(one.tpot_ms for one in completed if one.tpot_ms is not None),
        itl_ms=tuple(gap for one in completed for gap in one.itl_ms),
        itl_per_token_ms=tuple(gap for one in completed for gap in one.itl_per_token_ms),
        e2el_ms=tuple(one.e2el_ms for one in completed),
        queue_ms=tuple(one.queue_ms for one in completed if one.queue_ms is not None),
        num_completed=len(completed),
        num_failed=len(failures),
        failures=tuple(failures),
    )


def _num_tokens(request: Mapping[str, Any]) -> int:
    """n: the server's usage where it was given, else the tokens of the chunks."""
    if request.get("count_source") == "usage" and request.get("num_tokens") is not None:
        return int(request["num_tokens"])
    return len(request["token_ns"])
