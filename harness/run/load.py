"""Putting a server under load: when requests arrive, and how many may be in flight."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.errors import UsageError
from harness.run.client.completion import CompletionClient, CompletionRequest

__all__ = ["ArrivalPlan", "run_load"]

_KINDS = ("closed", "constant", "poisson")


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """When requests are meant to arrive.

    Attributes:
        kind: "closed": each as soon as one in flight has ended; "constant": every 1/rate s;
            "poisson": exponential gaps of mean 1/rate, seeded.
        rate: requests per second of the open kinds.
    """

    kind: str = "closed"
    rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise UsageError(f"arrival {self.kind!r}: choose one of {', '.join(_KINDS)}")
        if (self.kind == "closed") != (self.rate == 0) or self.rate < 0:
            raise UsageError(
                f"arrival {self.kind!r} with rate {self.rate}: a closed loop has none, "
                "constant and poisson need a positive one"
            )

    def offsets_s(self, count: int) -> list[float] | None:
        """Seconds after the start at which each request arrives; None in a closed loop."""
        if self.kind == "closed":
            return None
        if self.kind == "constant":
            return [number / self.rate for number in range(count)]
        source = random.Random(self.seed)
        offsets, now_s = [], 0.0
        for _ in range(count):
            offsets.append(now_s)
            now_s += source.expovariate(self.rate)
        return offsets


async def run_load(
    client: CompletionClient,
    requests: Sequence[CompletionRequest],
    plan: ArrivalPlan,
    concurrency: int,
    *,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[dict[str, Any]]:
    """Run requests and give their records in the order of the requests.

    An intended arrival is never moved: what waits for a permit shows as queue time.

    Args:
        concurrency: requests in flight at most.
    """
    offsets_s = plan.offsets_s(len(requests))
    permits = asyncio.Semaphore(concurrency)
    start_ns = time.perf_counter_ns()
    num_done = 0

    async def run_one(number: int) -> dict[str, Any]:
        nonlocal num_done
        t_arr_ns = None
        if offsets_s is not None:
            t_arr_ns = start_ns + round(offsets_s[number] * 1e9)
            await asyncio.sleep(max(0.0, (t_arr_ns - time.perf_counter_ns()) / 1e9))
        async with permits:
            record = await client.complete(requests[number], t_arr_ns=t_arr_ns)
        num_done += 1
        progress(num_done, len(requests))
        return record

    return list(await asyncio.gather(*(run_one(number) for number in range(len(requests)))))
