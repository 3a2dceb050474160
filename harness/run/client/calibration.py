"""How true the client's stamps are, and how many chunks it can take."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.core.latency import latency_of
from harness.run.client.completion import CompletionClient, CompletionRequest
from harness.run.client.scripted_server import scripted_server
from harness.run.load import ArrivalPlan, run_load

__all__ = ["Calibration", "calibrate", "chunk_rate"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The client's stamps against those of a server that knows when it wrote.

    Attributes:
        lag_ms: client's stamp minus server's, every chunk of every stream.
        tpot_error: per stream, the client's TPOT over the server's, minus one.
    """

    lag_ms: tuple[float, ...]
    tpot_error: tuple[float, ...]

    @property
    def median_lag_ms(self) -> float:
        """Half of the stamps are nearer."""
        return float(np.median(self.lag_ms))

    @property
    def p99_lag_ms(self) -> float:
        """99 of 100 stamps are nearer."""
        return float(np.percentile(self.lag_ms, 99))

    @property
    def worst_tpot_error(self) -> float:
        """The largest relative error of a stream's TPOT."""
        return max(abs(error) for error in self.tpot_error)


def calibrate(
    *, num_streams: int = 32, tokens_per_s: float = 100.0, num_tokens: int = 100
) -> Calibration:
    """Measure a scripted server with concurrent streams.

    Raises:
        RuntimeError: a stream failed.
    """
    with scripted_server() as url:
        client = CompletionClient(url, model=f"{tokens_per_s:g}")
        requests = [CompletionRequest([number, 1], num_tokens) for number in range(num_streams)]
        records = asyncio.run(run_load(client, requests, ArrivalPlan(), num_streams))
        _, body = asyncio.run(client.get("/stamps"))
    return _compared(records, json.loads(body))


def chunk_rate(*, num_streams: int = 8, num_tokens: int = 4000) -> float:
    """Chunks per second of this process when a server writes as fast as it can."""
    with scripted_server() as url:
        client = CompletionClient(url, model="0")
        requests = [CompletionRequest([number], num_tokens) for number in range(num_streams)]
        start_s = time.process_time()
        records = asyncio.run(run_load(client, requests, ArrivalPlan(), num_streams))
        elapsed_s = time.process_time() - start_s
    for record in records:
        latency_of(record)  # refuses what is not whole
    return num_streams * num_tokens / elapsed_s


def _compared(records: Sequence[dict[str, Any]], stamps: dict[str, list[int]]) -> Calibration:
    lags: list[float] = []
    errors: list[float] = []
    for number, record in enumerate(records):
        latency = latency_of(record)
        written = stamps[str(number)]
        lags += [
            (read - wrote) / 1e6 for read, wrote in zip(record["token_ns"], written, strict=True)
        ]
        assert latency.tpot_ms is not None
        tpot_ms = (written[-1] - written[0]) / 1e6 / (len(written) - 1)
        errors.append(latency.tpot_ms / tpot_ms - 1)
    return Calibration(tuple(lags), tuple(errors))
