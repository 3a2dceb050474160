"""The last collectives of one rank, in memory that its parent can read at any time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["RING_BYTES", "CollectiveRing", "count_entered", "first_difference", "read_ring"]

_NUM_ENTRIES = 32
_ENTRY_BYTES = 96
_HEADER = struct.Struct("<qq")
RING_BYTES = _HEADER.size + _NUM_ENTRIES * _ENTRY_BYTES


class CollectiveRing:
    """Writes entries into a shared buffer, flushed per event.

    The header holds how many collectives were entered and how many were left: a rank that is
    inside a collective has entered one more than it has left.

    Args:
        buffer: writable, RING_BYTES long.
    """

    def __init__(self, buffer: Any) -> None:
        self._view = memoryview(buffer).cast("B")
        self._entered = 0
        self._left = 0

    @property
    def num_entered(self) -> int:
        """Collectives entered so far."""
        return self._entered

    def enter(self, step: int, label: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        """Note the collective that is about to start."""
        name = str(dtype).removeprefix("torch.")
        text = f"step {step} #{self._entered} {label} {name} {list(shape)}".encode()
        at = _HEADER.size + (self._entered % _NUM_ENTRIES) * _ENTRY_BYTES
        self._view[at : at + _ENTRY_BYTES] = text[:_ENTRY_BYTES].ljust(_ENTRY_BYTES, b"\0")
        self._entered += 1
        self._write_header()

    def leave(self) -> None:
        """Note that it is over."""
        self._left += 1
        self._write_header()

    def _write_header(self) -> None:
        self._view[: _HEADER.size] = _HEADER.pack(self._entered, self._left)


def count_entered(buffer: Any) -> int:
    """Collectives entered, without their texts."""
    return int(_HEADER.unpack_from(buffer)[0])


def read_ring(buffer: Any) -> tuple[int, int, list[str]]:
    """Collectives entered, left, and the text of the last ones, oldest first."""
    raw = bytes(buffer)
    entered, left = _HEADER.unpack_from(raw)
    texts = []
    for number in range(max(0, entered - _NUM_ENTRIES), entered):
        at = _HEADER.size + (number % _NUM_ENTRIES) * _ENTRY_BYTES
        texts.append(raw[at : at + _ENTRY_BYTES].rstrip(b"\0").decode())
    return entered, left, texts


def first_difference(rings: Sequence[list[str]]) -> str:
    """The first entry in which ranks differ, one line a rank; empty where none does."""
    by_number = [{_number(text): text for text in ring} for ring in rings]
    numbers = sorted(set().union(*by_number))
    oldest_common = max((min(ring) for ring in by_number if ring), default=0)
    for number in numbers:
        texts = [ring.get(number, "(not entered)") for ring in by_number]
        if number >= oldest_common and len(set(texts)) > 1:
            lines = [f"  rank {rank}: {text}" for rank, text in enumerate(texts)]
            return "\n".join(["first collective that differs:", *lines])
    return ""


def _number(text: str) -> int:
    return int(text.partition("#")[2].partition(" ")[0])
