"""When requests arrive, and that no more than allowed are in flight."""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import pairwise
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.run.client.completion import CompletionRequest
from harness.run.load import ArrivalPlan, run_load


class RecordingClient:
    """Stands in for a CompletionClient: each request takes a fixed time."""

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self.num_in_flight = 0
        self.peak = 0

    async def complete(
        self, request: CompletionRequest, *, t_arr_ns: int | None = None
    ) -> dict[str, Any]:
        sent = time.perf_counter_ns()
        self.num_in_flight += 1
        self.peak = max(self.peak, self.num_in_flight)
        await asyncio.sleep(self.duration_s)
        self.num_in_flight -= 1
        return {"t_send_ns": sent, "t_arr_ns": t_arr_ns, "id": request.prompt_ids[0]}


def loaded(client: RecordingClient, plan: ArrivalPlan, count: int, concurrency: int) -> list[Any]:
    requests = [CompletionRequest([number], 1) for number in range(count)]
    return asyncio.run(run_load(client, requests, plan, concurrency))  # type: ignore[arg-type]


def test_a_closed_loop_keeps_exactly_so_many_in_flight() -> None:
    client = RecordingClient(0.02)
    records = loaded(client, ArrivalPlan(), 12, 4)
    assert client.peak == 4
    assert [record["id"] for record in records] == list(range(12))
    assert {record["t_arr_ns"] for record in records} == {None}


def test_a_constant_rate_is_kept_and_waiting_for_a_permit_is_queue_time() -> None:
    plan = ArrivalPlan("constant", rate=50.0)
    assert plan.offsets_s(4) == [0.0, 0.02, 0.04, 0.06]
    records = loaded(RecordingClient(0.1), plan, 4, 1)
    arrivals = [record["t_arr_ns"] - records[0]["t_arr_ns"] for record in records]
    assert arrivals == pytest.approx([0, 2e7, 4e7, 6e7], abs=10)
    queued_ms = [(record["t_send_ns"] - record["t_arr_ns"]) / 1e6 for record in records]
    assert queued_ms[3] > 3 * (100 - 20) - 5


def test_poisson_gaps_are_exponential_and_repeat_by_seed() -> None:
    plan = ArrivalPlan("poisson", rate=10.0, seed=4)
    offsets = plan.offsets_s(20_000)
    assert offsets is not None
    assert offsets == plan.offsets_s(20_000)
    assert offsets[:50] != ArrivalPlan("poisson", rate=10.0, seed=5).offsets_s(50)
    gaps = [late - early for early, late in pairwise(offsets)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.03)
    # The standard deviation of an exponential law is its mean; a constant rate has none.
    assert statistics.pstdev(gaps) == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize(
    ("kind", "rate"), [("closed", 1.0), ("constant", 0.0), ("poisson", -1.0), ("burst", 1.0)]
)
def test_a_rate_belongs_to_open_arrivals_only(kind: str, rate: float) -> None:
    with pytest.raises(UsageError, match="arrival"):
        ArrivalPlan(kind, rate)
