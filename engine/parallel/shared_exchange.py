"""All-gather between the CPU ranks of one host, through memory they share.

Gloo moves every part through the loopback socket. Here a rank lays its part into its slot, says
how far it is, and reads the others' slots once they are as far:

    board     one line a rank: number of rounds it has entered, what collective it believes the
              last of each half to be, and since when it compiles
    half 0    slots of all ranks for rounds 0, 2, 4, …
    half 1    the same for rounds 1, 3, 5, …

A rank fills a half again two rounds later, which it enters only after every rank has entered the
round between and so has read what was there. A part larger than a slot takes several rounds.
Plain loads and stores carry this on processors that keep stores in order (x86-64); elsewhere use
gloo.
"""

from __future__ import annotations

import os
import platform
import time
import zlib
from pathlib import Path

import numpy as np
import torch

from engine.parallel.patience import COMPILE_LIMIT_S, Patience
from engine.parallel.shared_segment import SHARED_DIRECTORY, SharedSegment

__all__ = ["SharedExchange", "can_share", "create_exchange_segment"]

_LINE_BYTES = 64
_PAGE_BYTES = 4096
# Of both halves: few rounds for a prefill's parts, little memory for many ranks.
_SLOTS_BYTES = 2**25
# A round between ranks that each have a core takes less than this; then the core is given up.
_SPIN_S = 100e-6
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 500e-6


def can_share() -> bool:
    """Whether this processor keeps the order of stores that the exchange relies on."""
    return platform.machine().lower() in ("x86_64", "amd64")


def create_exchange_segment(num_ranks: int, directory: Path = SHARED_DIRECTORY) -> SharedSegment:
    """Board and slots for a group of so many ranks.

    Raises:
        UsageError: shared memory has no room.
    """
    purpose = f"collectives of {num_ranks} ranks"
    return SharedSegment.create(
        _board_bytes(num_ranks) + 2 * num_ranks * _slot_bytes(num_ranks), purpose, directory
    )


class SharedExchange:
    """One rank's end.

    Args:
        segment: of `create_exchange_segment` with this `size`.
        limit_s: after which a rank that has not come counts as missing; it begins anew while such
            a rank says that it compiles.
    """

    def __init__(self, segment: SharedSegment, rank: int, size: int, limit_s: float) -> None:
        self._rank = rank
        self._limit_s = limit_s
        words = np.frombuffer(segment.view, dtype=np.int64, count=size * _LINE_BYTES // 8)
        lines = words.reshape(size, -1)
        self._entered, self._tags = lines[:, 0], lines[:, 1:3]
        # On the host's monotonic clock; 0 of a rank that does not compile.
        self._compiling_since_ns = lines[:, 3]
        self._slots = torch.frombuffer(
            segment.view,
            dtype=torch.uint8,
            count=2 * size * _slot_bytes(size),
            offset=_board_bytes(size),
        ).view(2, size, _slot_bytes(size))
        self._round = int(self._entered[rank])

    def note_compilation(self) -> None:
        """Say on the board that a graph is being made; this rank's next round takes it back."""
        self._compiling_since_ns[self._rank] = time.monotonic_ns()

    def gather(self, part: torch.Tensor, name: str) -> list[torch.Tensor]:
        """The contiguous part of every rank, in rank order, valid until this rank's next call.

        Args:
            name: of the collective; ranks that meet under different names or with parts of
                different sizes do not belong together.

        Raises:
            RuntimeError: ranks are in different collectives, or one did not come in time.
        """
        flat = part.reshape(-1)
        tag = zlib.crc32(f"{name} {part.dtype} {part.numel()}".encode())
        size, slot_bytes = self._slots.shape[1:]
        per_slot = slot_bytes // part.element_size()
        if part.numel() <= per_slot:
            # Read where they lie: nobody writes there before this rank has come again.
            slots = self._meet(flat, tag, name)
            return [slot.view(part.shape) for slot in slots.unbind()]
        gathered = part.new_empty(size, part.numel())
        for first in range(0, part.numel(), per_slot):
            piece = flat[first : first + per_slot]
            gathered[:, first : first + len(piece)] = self._meet(piece, tag, name)
        return [one.view(part.shape) for one in gathered.unbind()]

    def _meet(self, piece: torch.Tensor, tag: int, name: str) -> torch.Tensor:
        """[size, n] of all ranks' pieces [n] in one round, where they lie."""
        half = self._round % 2
        tags = self._tags[:, half]
        slots = self._slots[half].view(piece.dtype)[:, : len(piece)]
        self._compiling_since_ns[self._rank] = 0
        slots[self._rank] = piece
        tags[self._rank] = tag
        self._round += 1
        self._entered[self._rank] = self._round
        self._wait(name)
        strangers = np.flatnonzero(tags != tag).tolist()
        if strangers:
            raise RuntimeError(f"{name}: ranks {strangers} are in another collective")
        return slots

    def _wait(self, name: str) -> None:
        if self._entered.min() >= self._round:
            return
        start = time.monotonic()
        while self._entered.min() < self._round:
            if time.monotonic() - start > _SPIN_S:
                self._sleep_until_all_came(name)
                return
            os.sched_yield()

    def _sleep_until_all_came(self, name: str) -> None:
        patience = Patience(self._limit_s, self._a_missing_one_compiles)
        pause_s = _SHORTEST_PAUSE_S
        while self._entered.min() < self._round:
            if not patience.left_s():
                missing = np.flatnonzero(self._entered < self._round).tolist()
                raise RuntimeError(f"{name}: ranks {missing} did not come in {self._limit_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _a_missing_one_compiles(self) -> bool:
        since_ns = self._compiling_since_ns[self._entered < self._round].max(initial=0)
        return bool(since_ns and time.monotonic_ns() - since_ns < COMPILE_LIMIT_S * 1e9)


def _slot_bytes(size: int) -> int:
    return max(_PAGE_BYTES, _SLOTS_BYTES // (2 * size) // _PAGE_BYTES * _PAGE_BYTES)


def _board_bytes(size: int) -> int:
    return -(-size * _LINE_BYTES // _PAGE_BYTES) * _PAGE_BYTES
