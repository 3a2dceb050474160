"""The engine's state as numbers: taken by its thread after each step, read by anyone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.parallel.batches import Batches
from engine.schedule.request import Request

__all__ = ["EngineSnapshot", "SnapshotKeeper"]


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Counts after a step; those of drafts add up since the start.

    Attributes:
        num_pages: pages that can be handed out.
        accepted_by_place: accepted draft tokens at each place of a block.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_steps: int = 0
    num_pages: int = 0
    num_free_pages: int = 0
    num_free_slots: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_by_place: tuple[int, ...] = ()


class SnapshotKeeper:
    """Takes snapshots of an engine's batches."""

    def __init__(self, scheduler: Batches) -> None:
        self._scheduler = scheduler
        self._num_steps = 0
        self._ended_drafts = 0
        self._ended_draft_tokens = 0
        self._ended_by_place: list[int] = []
        self.last = self._snapshot((), 0)

    def count_ended(self, request: Request) -> None:
        """Keep what a request that is over contributed."""
        acceptance = request.acceptance
        self._ended_drafts += acceptance.num_drafts
        self._ended_draft_tokens += acceptance.num_draft_tokens
        self._ended_by_place = _summed(self._ended_by_place, acceptance.accepted_by_place)

    def take(self, active: Iterable[Request]) -> None:
        """Make `last` the state of now."""
        self._num_steps += 1
        self.last = self._snapshot(tuple(active), self._num_steps)

    def _snapshot(self, active: tuple[Request, ...], num_steps: int) -> EngineSnapshot:
        drafts, draft_tokens = self._ended_drafts, self._ended_draft_tokens
        by_place = self._ended_by_place
        for request in active:
            drafts += request.acceptance.num_drafts
            draft_tokens += request.acceptance.num_draft_tokens
            by_place = _summed(by_place, request.acceptance.accepted_by_place)
        pool = self._scheduler.pool
        return EngineSnapshot(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_steps=num_steps,
            num_pages=pool.num_usable_pages,
            num_free_pages=pool.num_free_pages,
            num_free_slots=pool.num_free_slots,
            num_preemptions=self._scheduler.num_preemptions,
            num_drafts=drafts,
            num_draft_tokens=draft_tokens,
            accepted_by_place=tuple(by_place),
        )


def _summed(left: list[int], right: list[int]) -> list[int]:
    size = max(len(left), len(right))
    padded = [[*side, *[0] * (size - len(side))] for side in (left, right)]
    return [sum(pair) for pair in zip(*padded, strict=True)]
