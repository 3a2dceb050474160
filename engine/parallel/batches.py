"""One scheduler for each batch of the topology, and steps that all batches take together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.parallel.topology import Topology
from engine.schedule.plan import NO_TOKENS, DraftPlan, StepPlan
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from engine.worker import DraftOutput, StepOutput

__all__ = ["Batches", "PoolCounts", "idle_plan"]


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Pages and slots of all batches together; scratch pages are not counted."""

    num_usable_pages: int
    num_free_pages: int
    num_free_slots: int


class Batches:
    """Requests are dealt to the batch with the fewest tokens to compute; ties to the lowest.

    Every batch has its own pages, slots and queue, so that what one does never depends on
    another. All step together: ranks of all batches meet in the experts.

    Args:
        make: a scheduler with an empty pool.
    """

    def __init__(self, topology: Topology, make: Callable[[], Scheduler]) -> None:
        self.schedulers = tuple(make() for _ in range(topology.num_batches))
        self._planned: tuple[Scheduler, ...] = ()
        self._drafting: tuple[Scheduler, ...] = ()
        self._step = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return any(scheduler.has_work for scheduler in self.schedulers)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return sum(scheduler.num_waiting for scheduler in self.schedulers)

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return sum(scheduler.num_running for scheduler in self.schedulers)

    @property
    def num_preemptions(self) -> int:
        """Times a request gave its pages up for an older one of its batch."""
        return sum(scheduler.num_preemptions for scheduler in self.schedulers)

    @property
    def pool(self) -> PoolCounts:
        """Pages and slots of all batches."""
        pools = [scheduler.pool for scheduler in self.schedulers]
        return PoolCounts(
            num_usable_pages=sum(pool.num_pages - 1 for pool in pools),
            num_free_pages=sum(pool.num_free_pages for pool in pools),
            num_free_slots=sum(pool.num_free_slots for pool in pools),
        )

    def add(self, request: Request) -> None:
        """Queue a request in the batch with the least to do.

        Raises:
            UsageError: it could never run.
        """
        min(self.schedulers, key=lambda scheduler: scheduler.num_pending_tokens).add(request)

    def abort(self, request: Request) -> None:
        """Drop a request, finished or not; its pages are free at once."""
        for scheduler in self.schedulers:
            scheduler.abort(request)

    def next_plans(self) -> tuple[StepPlan, ...]:
        """One plan a batch, all of one width; `has_work` must hold."""
        self._planned = tuple(one for one in self.schedulers if one.has_work)
        plans = {one: one.next_plan() for one in self._planned}
        width = max(plan.padded_rows for plan in plans.values())
        has_prompt_rows = any(plan.has_prompt_rows for plan in plans.values())
        idle = idle_plan(min(plan.context for plan in plans.values()))
        step, self._step = self._step, self._step + 1
        return tuple(
            replace(
                plans.get(one, idle),
                step=step,
                padded_rows=width,
                has_prompt_rows=has_prompt_rows,
            )
            for one in self.schedulers
        )

    def apply(self, plans: Sequence[StepPlan], outputs: Sequence[StepOutput], now_ns: int) -> None:
        """Take in what a step produced."""
        for scheduler, plan, output in zip(self.schedulers, plans, outputs, strict=True):
            if scheduler in self._planned:
                scheduler.apply(plan, output, now_ns)

    def next_drafts(self) -> tuple[DraftPlan, ...]:
        """One draft plan a batch, with equally many blocks; () where nobody drafts."""
        drafts = {one: one.next_drafts() for one in self.schedulers}
        found = {one: plan for one, plan in drafts.items() if plan is not None}
        self._drafting = tuple(found)
        if not found:
            return ()
        width = max(len(plan.sequences) for plan in found.values())
        idle = DraftPlan(self._step, ())
        return tuple(
            replace(found.get(one, idle), step=self._step, padded_sequences=width)
            for one in self.schedulers
        )

    def take_drafts(self, outputs: Sequence[DraftOutput], threshold: float) -> None:
        """Keep what each request will verify."""
        for scheduler, output in zip(self.schedulers, outputs, strict=True):
            if scheduler in self._drafting:
                scheduler.take_drafts(output, threshold)


def idle_plan(context: int) -> StepPlan:
    """A step of a batch without work: one sequence without tokens.

    Every row is padding, so nothing is written but the scratch page.
    """
    return StepPlan(step=0, chunks=(NO_TOKENS,), padded_rows=1, context=context, want_logits=False)
