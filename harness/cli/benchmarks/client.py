"""How true the HTTP client's stamps are, and how many chunks a second it takes."""

from __future__ import annotations

from harness.cli.benchmarks.measurement import Figure

__all__ = ["client_figures"]

_MAX_MEDIAN_LAG_MS = 1.0
_MAX_P99_LAG_MS = 5.0
_MAX_TPOT_ERROR = 0.01
_MIN_CHUNKS_PER_S = 5000.0


def client_figures() -> list[Figure]:
    """32 streams of 100 tokens/s against a server that knows when it wrote each chunk."""
    from harness.run.client.calibration import calibrate, chunk_rate

    found = calibrate()
    rate = chunk_rate()
    against = "scripted server, same monotonic clock"
    return [
        _at_most(
            "client stamp lag, median", found.median_lag_ms, "ms", _MAX_MEDIAN_LAG_MS, against
        ),
        _at_most("client stamp lag, p99", found.p99_lag_ms, "ms", _MAX_P99_LAG_MS, against),
        _at_most(
            "client TPOT error, worst stream",
            100 * found.worst_tpot_error,
            "%",
            100 * _MAX_TPOT_ERROR,
            against,
        ),
        Figure(
            "client, chunks per second of its own CPU",
            rate,
            "1/s",
            f">= {_MIN_CHUNKS_PER_S:g}",
            rate >= _MIN_CHUNKS_PER_S,
        ),
    ]


def _at_most(name: str, value: float, unit: str, limit: float, against: str) -> Figure:
    return Figure(name, value, unit, f"<= {limit:g}", value <= limit, against)
