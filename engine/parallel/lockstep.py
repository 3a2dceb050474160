"""N ranks in one process, one at a time in rank order (measurement.md §2).

A baton goes round: a rank runs until it reaches a collective, lays down its part and hands the
baton on. When it comes back every rank has laid down its part. The order of execution is thus
fixed, and N real processes must give the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from engine.parallel.group import Group

__all__ = ["Lockstep"]

T = TypeVar("T")


class Lockstep:
    """The meeting place of `size` ranks.

    Raises (from `run`): whatever a rank raised first, after the others were let go.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._parts: dict[int, list[torch.Tensor]] = {}
        self._error: BaseException | None = None
        self.groups = [_LockstepGroup(rank, self) for rank in range(size)]

    def run(self, task: Callable[[int], T]) -> list[T]:
        """task(rank) of every rank, results in rank order."""
        results: list[T | None] = [None] * self.size
        self._error = None
        self._parts.clear()

        def work(rank: int) -> None:
            self._turns[rank].acquire()
            try:
                if self._error is None:
                    results[rank] = task(rank)
            except BaseException as error:
                self._error = self._error or error
            self._turns[(rank + 1) % self.size].release()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        # The last rank handed the baton to a rank that had ended; take it back for the next run.
        for turn in self._turns:
            while turn.acquire(blocking=False):
                pass
        if self._error is not None:
            raise self._error
        return [result for result in results if result is not None]

    def exchange(self, rank: int, number: int, part: torch.Tensor) -> list[torch.Tensor]:
        """Lay down `part` as this rank's `number`-th and wait for all others."""
        self._parts.setdefault(number, []).append(part)
        self._turns[(rank + 1) % self.size].release()
        self._turns[rank].acquire()
        if self._error is not None:
            raise RuntimeError("another rank failed") from self._error
        parts = self._parts[number]
        if len(parts) != self.size:
            raise RuntimeError(f"collective {number}: {len(parts)} of {self.size} ranks joined")
        if rank == self.size - 1:
            del self._parts[number]
        return parts


class _LockstepGroup(Group):
    def __init__(self, rank: int, lockstep: Lockstep) -> None:
        super().__init__(rank, lockstep.size)
        self._lockstep = lockstep
        self._number = 0

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        self._number += 1
        return list(self._lockstep.exchange(self.rank, self._number, part))
