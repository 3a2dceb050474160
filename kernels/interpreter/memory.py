"""Storages: owned bytes of one memory, their written mask and their lifetime.

Fresh memory holds nothing. Rather than filling it with NaN, each storage knows which of its
cells were written; a read of any other cell is refused for every dtype. Only HBM outputs are
filled with a poison, since the host sees them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.interpreter.pool import give_back

__all__ = ["ByteRange", "Lifetime", "MemoryRegion", "Storage"]

Array = npt.NDArray[Any]
_NONE, _SOME, _ALL = 0, 1, 2


class MemoryRegion(Enum):
    """The memories a tensor can live in."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    # Identity hash: regions are keys on the hot path, and Enum's own hash is a Python call.
    __hash__ = object.__hash__

    def __init__(self, value: str) -> None:
        # Linear memory behind the DMA engines. An attribute: it is read for every view.
        self.is_hbm = value.endswith("hbm")

    def __str__(self) -> str:
        return self.value


class Clock(Protocol):
    """Counts the instructions of one program."""

    tick: int


class AccessLog(Protocol):
    """Watches a storage that two programs share."""

    def note_read(self, cells: ByteRange) -> None:
        """`cells` are read."""

    def note_write(self, cells: ByteRange) -> None:
        """`cells` are written."""


class Lifetime:
    """From the first to the last use of an on-chip allocation, in instruction numbers.

    It outlives its storage: the high-water mark is computed when the kernel has ended.
    """

    __slots__ = ("clock", "first_use", "last_use", "name", "partition_bytes", "region", "site")

    def __init__(
        self, region: MemoryRegion, partition_bytes: int, site: str, name: str, clock: Clock
    ) -> None:
        self.region = region
        self.partition_bytes = partition_bytes
        self.site = site
        self.name = name
        self.clock = clock
        self.first_use = -1
        self.last_use = -1

    def touch(self) -> None:
        """The allocation is used by the running instruction."""
        self.last_use = self.clock.tick
        if self.first_use < 0:
            self.first_use = self.last_use


class ByteRange:
    """A view's cells in a storage: shape and strides in bytes, for masks."""

    __slots__ = ("itemsize", "offset", "shape", "strides")

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, itemsize: int
    ) -> None:
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.itemsize = itemsize


class Storage:
    """Bytes of one allocation.

    Attributes:
        buffer: the bytes, C order; on chip partition by partition.
        partition_bytes: bytes of one partition (the whole storage in HBM).
        version: counts writes.
        lifetime: on chip only.
        site: "file:line" of the allocation.
    """

    __slots__ = (
        "_granule",
        "_mask",
        "_pending",
        "_state",
        "buffer",
        "float_tiles",
        "is_input",
        "lifetime",
        "name",
        "nbytes",
        "partition_bytes",
        "partitions",
        "pooled",
        "races",
        "region",
        "site",
        "version",
    )

    def __init__(
        self,
        region: MemoryRegion,
        buffer: Array,
        *,
        partitions: int,
        granule: int,
        written: bool,
        name: str = "",
        site: str = "",
        lifetime: Lifetime | None = None,
    ) -> None:
        self.region = region
        self.buffer = buffer
        self.nbytes = buffer.size
        self.partitions = partitions
        self.partition_bytes = self.nbytes // max(partitions, 1)
        self.name = name
        self.site = site
        self.version = 0
        self.lifetime = lifetime
        self.pooled = lifetime is not None
        self.is_input = written
        self.float_tiles: tuple[int, dict[Any, Array]] | None = None
        self.races: AccessLog | None = None
        self._granule = granule
        self._mask: Array | None = None
        self._pending = 0
        self._state = _ALL if written or self.nbytes == 0 else _NONE

    def __del__(self) -> None:
        if self.pooled:
            give_back(self.buffer)

    @property
    def is_fully_written(self) -> bool:
        """Whether every cell was written; lets reads skip the mask."""
        if self._state == _SOME:
            self._settle()
        return self._state == _ALL

    @property
    def was_touched(self) -> bool:
        """Whether any cell was written."""
        return self._state != _NONE

    def note_write(self, cells: ByteRange, covers_all: bool) -> None:
        """`cells` now hold values."""
        self.version += 1
        if self.races is not None:
            self.races.note_write(cells)
        if self._state == _ALL:
            return
        if covers_all:
            self._state = _ALL
            self._mask = None
            return
        self._cells(cells)[...] = True
        written = cells.itemsize // self._granule
        for extent in cells.shape:
            written *= extent
        self._pending += written
        if self._pending >= self._number_of_granules:
            self._settle()

    def holds(self, cells: ByteRange) -> bool:
        """Whether every one of `cells` was written."""
        if self._state == _ALL:
            return True
        if self._state == _NONE:
            return 0 in cells.shape
        return bool(self._cells(cells).all())

    def written(self, cells: ByteRange) -> Array:
        """The written flag of each element of `cells`, a fresh bool array."""
        if self._state == _ALL:
            return np.ones(cells.shape, np.bool_)
        if self._state == _NONE:
            return np.zeros(cells.shape, np.bool_)
        return np.asarray(self._cells(cells).all(axis=-1))

    def forget_all(self) -> None:
        """The storage is handed out afresh."""
        self._state = _NONE if self.nbytes else _ALL
        self._mask = None
        self._pending = 0

    def written_mask_bytes(self) -> Array:
        """The written flag of each byte."""
        if self._state == _ALL:
            return np.ones(self.nbytes, np.bool_)
        if self._mask is None:
            return np.zeros(self.nbytes, np.bool_)
        return np.repeat(self._mask, self._granule)

    @property
    def _number_of_granules(self) -> int:
        return self.nbytes // self._granule

    def _settle(self) -> None:
        assert self._mask is not None
        if self._mask.all():
            self._state = _ALL
            self._mask = None
        self._pending = 0

    def _cells(self, cells: ByteRange) -> Array:
        """The mask of `cells`, with the granules of one element as a trailing axis."""
        if self._mask is None:
            self._mask = np.zeros(self._number_of_granules, np.bool_)
            self._state = _SOME
        granule = self._granule
        if cells.itemsize < granule or any(stride % granule for stride in cells.strides):
            self._mask = np.repeat(self._mask, granule)
            granule = self._granule = 1
            self._pending = 0
        return np.ndarray(
            (*cells.shape, cells.itemsize // granule),
            np.bool_,
            self._mask,
            cells.offset // granule,
            (*(stride // granule for stride in cells.strides), 1),
        )
