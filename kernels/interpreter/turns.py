"""The two programs of LNC2 take turns, one instruction each, so that every run is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kernels.interpreter.errors import refuse

__all__ = ["LaunchAborted", "Turns"]


class LaunchAborted(BaseException):
    """The other program failed; this one stops. Never leaves the launch."""


class Turns:
    """A token that one program at a time holds.

    Args:
        num_programs: programs of the launch; program 0 starts.
    """

    def __init__(self, num_programs: int) -> None:
        # Bare locks: a semaphore costs three times as much a turn.
        self._doors = [threading.Lock() for _ in range(num_programs)]
        for door in self._doors[1:]:
            door.acquire()
        self._live = list(range(num_programs))
        self._blocked: dict[int, str] = {}
        self._aborted = False

    def start(self, index: int) -> None:
        """Wait for the first turn."""
        self._doors[index].acquire()
        self._check()

    def pass_on(self, index: int) -> None:
        """Let the next program run one instruction, then come back."""
        if len(self._live) == 1:
            return
        self._doors[self._next(index)].release()
        self._doors[index].acquire()
        self._check()

    def finish(self, index: int, failed: bool) -> None:
        """Program `index` has ended."""
        successor = self._next(index) if len(self._live) > 1 else None
        self._live.remove(index)
        self._aborted = self._aborted or failed
        if successor is not None:
            self._doors[successor].release()

    def wait_until(self, index: int, arrived: Callable[[], bool], what: str) -> None:
        """Pass turns until `arrived()`.

        Raises:
            NkiValidationError: no other program can make it true any more.
        """
        while not arrived():
            self._blocked[index] = what
            if all(other in self._blocked for other in self._live):
                waits = "; ".join(f"program {i} waits for {w}" for i, w in self._blocked.items())
                refuse("cores", waits, "control flow must match on both cores")
            self.pass_on(index)
        # Whoever waits may find its own condition true now.
        self._blocked.clear()

    def _next(self, index: int) -> int:
        position = self._live.index(index)
        return self._live[(position + 1) % len(self._live)]

    def _check(self) -> None:
        if self._aborted:
            raise LaunchAborted
