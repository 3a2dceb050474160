"""N ranks in one process, one at a time in rank order (measurement.md §2).

A baton goes round: a rank runs until it reaches a collective, lays down its part and hands the
baton on. When every rank of the collective's group has laid down its part, each takes all of them
as the baton comes back. The order of execution is thus fixed, and N real processes must give the
same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from engine.parallel.group import Group
from harness.core.errors import RankError

__all__ = ["Lockstep"]

T = TypeVar("T")
Meeting = tuple[range, int]


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rank brings to a collective, and what it believes the collective to be."""

    rank: int
    name: str
    tensor: torch.Tensor


class Lockstep:
    """The meeting place of `size` ranks.

    Raises (from `run`):
        RankError: a rank waits for one that does not come, or meets it in another collective.
        Exception: whatever a rank raised first, after the others were let go.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._parts: dict[Meeting, list[_Part]] = {}
        self._working: set[int] = set()
        # Counts what was laid down and who ended: a round without any means that all wait.
        self._num_events = 0
        self._error: BaseException | None = None
        self.groups = self.groups_of(range(size))

    def groups_of(self, members: range) -> list[Group]:
        """An end for each of `members`, who meet among themselves."""
        return [_LockstepGroup(members, rank, self) for rank in members]

    def run(self, task: Callable[[int], T]) -> list[T]:
        """task(rank) of every rank, results in rank order."""
        results: list[T | None] = [None] * self.size
        self._error = None
        self._parts.clear()
        self._working = set(range(self.size))

        def work(rank: int) -> None:
            self._turns[rank].acquire()
            try:
                if self._error is None:
                    results[rank] = task(rank)
            except BaseException as error:
                self._error = self._error or error
            self._working.discard(rank)
            self._num_events += 1
            self._hand_on(rank)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return [result for result in results if result is not None]

    def exchange(self, meeting: Meeting, part: _Part) -> list[torch.Tensor]:
        """Lay down a part and wait for those of all members of the meeting."""
        parts = self._parts.setdefault(meeting, [])
        parts.append(part)
        self._num_events += 1
        members = meeting[0]
        while True:
            seen = self._num_events
            self._hand_on(part.rank)
            self._turns[part.rank].acquire()
            if self._error is not None:
                raise RuntimeError("another rank failed") from self._error
            if len(parts) == len(members):
                break
            if seen == self._num_events:
                raise RankError(part.rank, _waits_in_vain(part, parts, members))
        if part.rank == members[-1]:
            self._parts.pop(meeting, None)
        _check_same(parts)
        return [one.tensor for one in sorted(parts, key=lambda one: one.rank)]

    def _hand_on(self, rank: int) -> None:
        """The baton goes to the next rank that still works, which may be the same one."""
        for step in range(1, self.size + 1):
            following = (rank + step) % self.size
            if following in self._working:
                self._turns[following].release()
                return


def _waits_in_vain(part: _Part, parts: Sequence[_Part], members: range) -> str:
    come = {one.rank for one in parts}
    missing = ", ".join(str(rank) for rank in members if rank not in come)
    return f"waits in {part.name}: {len(parts)} of {len(members)} ranks joined, not {missing}"


def _check_same(parts: Sequence[_Part]) -> None:
    for part in parts:
        if part.name != parts[0].name:
            raise RankError(
                part.rank, f"is in {part.name}, rank {parts[0].rank} is in {parts[0].name}"
            )


class _LockstepGroup(Group):
    def __init__(self, members: range, rank: int, lockstep: Lockstep) -> None:
        super().__init__(rank - members[0], len(members))
        self._members = members
        self._lockstep = lockstep
        self._number = 0

    def start_step(self, step: int) -> None:
        """See Group; numbers start again, so that a step that failed leaves no trace."""
        super().start_step(step)
        self._number = 0

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        self._number += 1
        name = f"{self.label} {str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
        mine = _Part(self._members[self.rank], name, part)
        return self._lockstep.exchange((self._members, self._number), mine)
