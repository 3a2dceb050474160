"""The Engram tables of all ranks of a host: one copy in shared memory (port.md R18).

Whoever starts the ranks creates the segment; each rank maps it and copies its share of the rows
from the checkpoint. No rank looks a row up before every rank has reported ready, so the copying
needs no barrier of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config.model import ModelConfig
from engine.parallel.shared_segment import SHARED_DIRECTORY, SharedSegment
from engine.weights.checkpoint import Span, TensorSource

__all__ = ["SharedTables", "TableExtent", "create_table_segment", "table_extents"]

_PAGE_BYTES = 4096
_TILE = 32
# Bytes copied at a time: a real table is far larger than a rank's memory.
_SLAB_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class TableExtent:
    """Where one uint8 tensor [rows, columns] of the checkpoint lies in the segment.

    Attributes:
        dtype: as the safetensors header names it.
        offset: in bytes from the start of the segment, a multiple of the page size.
    """

    name: str
    dtype: str
    shape: tuple[int, int]
    offset: int

    @property
    def num_bytes(self) -> int:
        """Of the tensor."""
        return math.prod(self.shape)


def table_extents(config: ModelConfig) -> tuple[TableExtent, ...]:
    """Codes and scales of every Engram layer, one after another; () without Engram."""
    engram = config.engram
    if engram is None:
        return ()
    extents: list[TableExtent] = []
    offset = 0
    for layer_id, num_rows in zip(engram.layer_ids, engram.num_embeddings, strict=True):
        stem = f"layers.{layer_id}.engram.embed."
        for suffix, dtype, width in (
            ("weight", "F8_E4M3", engram.head_dim),
            ("scale", "F8_E8M0", engram.head_dim // _TILE),
        ):
            extent = TableExtent(stem + suffix, dtype, (num_rows, width), offset)
            extents.append(extent)
            offset += -(-extent.num_bytes // _PAGE_BYTES) * _PAGE_BYTES
    return tuple(extents)


def create_table_segment(
    config: ModelConfig, directory: Path = SHARED_DIRECTORY
) -> SharedSegment | None:
    """Room for all tables of a model, still empty; None without Engram.

    Raises:
        UsageError: the file system is too full.
    """
    extents = table_extents(config)
    if not extents:
        return None
    last = extents[-1]
    purpose = "the Engram tables of this instance, one copy for all its ranks,"
    return SharedSegment.create(last.offset + last.num_bytes, purpose, directory)


class SharedTables:
    """A checkpoint whose Engram tables come from shared memory (engine.weights TensorSource)."""

    def __init__(self, source: TensorSource, segment: SharedSegment, config: ModelConfig) -> None:
        self._source = source
        self._extents = {extent.name: extent for extent in table_extents(config)}
        self._tensors = {
            name: torch.frombuffer(
                segment.view, dtype=torch.uint8, count=extent.num_bytes, offset=extent.offset
            ).view(extent.shape)
            for name, extent in self._extents.items()
        }

    def fill(self, share: int, num_shares: int) -> None:
        """Copy share `share` of `num_shares` of every table's rows from the checkpoint.

        Raises:
            InputError: as Checkpoint does.
        """
        for name, extent in self._extents.items():
            num_rows, width = extent.shape
            first, last = (num_rows * at // num_shares for at in (share, share + 1))
            slab = max(1, _SLAB_BYTES // width)
            for start in range(first, last, slab):
                rows = (start, min(last, start + slab))
                self._tensors[name][slice(*rows)] = self._source.read(
                    name, extent.dtype, extent.shape, rows=rows
                )

    def has(self, name: str) -> bool:
        """See TensorSource."""
        return self._source.has(name)

    def read(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        rows: Span | None = None,
        columns: Span | None = None,
    ) -> torch.Tensor:
        """See TensorSource; a whole table is a view of the segment."""
        if name in self._tensors and rows is None and columns is None:
            return self._tensors[name]
        return self._source.read(name, dtype, shape, rows=rows, columns=columns)

    def stack(
        self, names: Sequence[Sequence[str]], dtype: str, shape: tuple[int, int]
    ) -> torch.Tensor:
        """See TensorSource."""
        return self._source.stack(names, dtype, shape)
