"""What the server says of each request it answered, beside what a client reports of them.

The server writes a line a request with its tokens and the times at which they left: from the
request's arrival to the first token handed to the socket, and from there to the last. A client
stamps the same moments on its side of the socket.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from statistics import mean, median

import pytest

__all__ = ["TOLERANCE", "ServerLog", "assert_close", "capture_log"]

TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class ServerLog:
    """Streamed requests of one path, as the server's own log has them."""

    prompt_tokens: tuple[int, ...]
    completion_tokens: tuple[int, ...]
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]

    @classmethod
    def of(cls, caplog: pytest.LogCaptureFixture, path: str) -> ServerLog:
        """Read what was logged so far; every 200 of the path must have been a stream."""
        lines = [record.getMessage() for record in caplog.get_records("call")]
        found = [
            dict(word.split("=", 1) for word in line.split())
            for line in lines
            if f"path={path} status=200" in line
        ]
        return cls(
            tuple(int(one["prompt_tokens"]) for one in found),
            tuple(int(one["completion_tokens"]) for one in found),
            tuple(float(one["ttft_ms"]) for one in found),
            tuple(float(one["tpot_ms"]) for one in found),
        )


def capture_log(caplog: pytest.LogCaptureFixture) -> None:
    """Keep the server's lines."""
    caplog.set_level(logging.INFO, logger="neuron_harness.serve")


def assert_close(
    name: str,
    reported_mean_ms: float,
    reported_median_ms: float,
    served_ms: tuple[float, ...],
) -> None:
    """Mean and median of a client's report are the server's within 2 %; prints both."""
    pairs = (
        ("mean", reported_mean_ms, mean(served_ms)),
        ("median", reported_median_ms, median(served_ms)),
    )
    for kind, reported, served in pairs:
        off = reported / served - 1
        print(f"{name} {kind}: client {reported:.3f} ms, server {served:.3f} ms, {off:+.2%}")
    for kind, reported, served in pairs:
        assert reported == pytest.approx(served, rel=TOLERANCE), f"{kind} {name}"
