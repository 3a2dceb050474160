"""A leader's messages to the ranks of its host, in memory they share (port.md R13).

    board    one word a rank, a cache line apart: number of the last message it has taken
    box 0    (number, size) and content of messages 0, 2, 4, …
    box 1    the same of messages 1, 3, 5, …

The leader writes a message once and wakes each rank with a byte through a pipe, in which a rank
sleeps without using its core. Only then does a rank read, so the system calls order the memory.
With two boxes the leader never waits for a rank that is less than two messages behind.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.parallel.shared_segment import SHARED_DIRECTORY, SharedSegment
from harness.core.errors import UsageError

__all__ = ["LagError", "Mailbox", "MailboxReader"]

_LINE_BYTES = 64
_PAGE_BYTES = 4096
_HEADER = struct.Struct("<qq")
# Address space of a box; memory is taken as messages grow.
_BOX_BYTES = 64 * 2**20
_FIRST_RESERVED_BYTES = 16 * 2**10
_PAUSE_S = 50e-6
_BELL = b"\x01"


class LagError(RuntimeError):
    """Ranks have not taken the message before the last one.

    Attributes:
        ranks: which.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        super().__init__(f"ranks {list(ranks)} are two messages behind")


class Mailbox:
    """The leader's end.

    Attributes:
        path: what a MailboxReader opens.

    Raises:
        UsageError: shared memory has no room.
    """

    def __init__(self, num_ranks: int, directory: Path = SHARED_DIRECTORY) -> None:
        self._first_box = _first_box(num_ranks)
        self._segment = SharedSegment.create(
            self._first_box + 2 * _BOX_BYTES,
            "the steps' messages to this instance's ranks",
            directory,
            reserved_bytes=self._first_box,
        )
        self.path = self._segment.path
        self._taken = _board(self._segment, num_ranks)
        self._taken[:] = -1
        self._reserved = [0, 0]
        self._number = 0
        for box in range(2):
            self._make_room(box, _FIRST_RESERVED_BYTES)

    def publish(self, content: bytes, bells: Sequence[int], limit_s: float) -> Collection[int]:
        """Write a message and wake every rank.

        Args:
            bells: descriptor of each rank's pipe, in rank order.

        Returns:
            Ranks whose pipe nobody reads any more.

        Raises:
            LagError: a rank did not take an earlier message within the limit.
            UsageError: the message is too long, or shared memory has no room for it.
        """
        number, box = self._number, self._number % 2
        # The box is free once everybody has taken the message before the last.
        self._wait_until_taken(number - 2, limit_s)
        self._make_room(box, _HEADER.size + len(content))
        at = self._first_box + box * _BOX_BYTES
        view = self._segment.view
        view[at + _HEADER.size : at + _HEADER.size + len(content)] = content
        view[at : at + _HEADER.size] = _HEADER.pack(number, len(content))
        self._number += 1
        return _ring(bells)

    def close(self) -> None:
        """Nobody new can open it; idempotent."""
        self._segment.forget()

    def _wait_until_taken(self, number: int, limit_s: float) -> None:
        if self._taken.min() >= number:
            return
        deadline = time.monotonic() + limit_s
        while self._taken.min() < number:
            if time.monotonic() > deadline:
                raise LagError(np.flatnonzero(self._taken < number).tolist())
            time.sleep(_PAUSE_S)

    def _make_room(self, box: int, num_bytes: int) -> None:
        if num_bytes <= self._reserved[box]:
            return
        if num_bytes > _BOX_BYTES:
            raise UsageError(
                f"a step's plan takes {num_bytes} bytes, at most {_BOX_BYTES} reach the ranks: "
                "lower --max-num-batched-tokens or --num-kv-blocks"
            )
        wanted = max(num_bytes, 2 * self._reserved[box])
        wanted = min(_BOX_BYTES, -(-wanted // _PAGE_BYTES) * _PAGE_BYTES)
        self._segment.reserve(self._first_box + box * _BOX_BYTES, wanted)
        self._reserved[box] = wanted


class MailboxReader:
    """A rank's end.

    Args:
        path: of the leader's Mailbox, which must still be open.
        bell: descriptor of the pipe the leader wakes this rank through.
    """

    def __init__(self, path: str, rank: int, num_ranks: int, bell: int) -> None:
        self._segment = SharedSegment.open(path)
        self._first_box = _first_box(num_ranks)
        self._taken = _board(self._segment, num_ranks)[rank : rank + 1]
        self._bell = bell
        self._number = 0

    def receive(self) -> bytes:
        """The next message; sleeps until there is one.

        Raises:
            EOFError: the leader is gone.
            RuntimeError: the box holds another message than the one that is due.
        """
        if not os.read(self._bell, 1):
            raise EOFError("the leader is gone")
        at = self._first_box + self._number % 2 * _BOX_BYTES
        view = self._segment.view
        number, size = _HEADER.unpack(view[at : at + _HEADER.size])
        if number != self._number:
            raise RuntimeError(f"found message {number} where {self._number} is due")
        content = bytes(view[at + _HEADER.size : at + _HEADER.size + size])
        self._taken[0] = number
        self._number += 1
        return content


def _first_box(num_ranks: int) -> int:
    return -(-num_ranks * _LINE_BYTES // _PAGE_BYTES) * _PAGE_BYTES


def _board(segment: SharedSegment, num_ranks: int) -> npt.NDArray[np.int64]:
    words = np.frombuffer(segment.view, dtype=np.int64, count=num_ranks * _LINE_BYTES // 8)
    return words.reshape(num_ranks, -1)[:, 0]


def _ring(bells: Sequence[int]) -> list[int]:
    gone = []
    for rank, bell in enumerate(bells):
        try:
            os.write(bell, _BELL)
        except BrokenPipeError:
            gone.append(rank)
    return gone
