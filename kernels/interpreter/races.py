"""Conflicting accesses of the two LNC2 programs to shared HBM.

The programs run on two cores: between two barriers their accesses have no order. So a cell that
one program writes may be neither written nor read by the other before the next core_barrier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.memory import ByteRange

__all__ = ["SharedAccesses"]

Mask = npt.NDArray[np.bool_]
_REMEDY = "put nisa.core_barrier between them, or let each program touch cells of its own"


class SharedAccesses:
    """Who touched which bytes of one storage since the last barrier.

    Args:
        nbytes: of the storage.
        granule: itemsize of its allocation; masks have one flag for each.
        num_programs: programs of the launch.
    """

    __slots__ = ("_epoch", "_granule", "_nbytes", "_reads", "_writes")

    def __init__(self, nbytes: int, granule: int, num_programs: int) -> None:
        self._nbytes = nbytes
        self._granule = granule
        self._epoch = 0
        # Reads are kept as they come: most storages that are read are never written.
        self._reads: list[list[ByteRange]] = [[] for _ in range(num_programs)]
        self._writes: list[Mask | None] = [None] * num_programs

    def note_read(self, cells: ByteRange) -> None:
        """The running program reads `cells`.

        Raises:
            NkiValidationError: the other program wrote one of them since the last barrier.
        """
        program = self._enter()
        self._refine(cells)
        self._reads[program].append(cells)
        for other, mask in enumerate(self._writes):
            if other != program and mask is not None and self._view(mask, cells).any():
                self._conflict(f"program {program} reads what program {other} wrote")

    def note_write(self, cells: ByteRange) -> None:
        """The running program writes `cells`.

        Raises:
            NkiValidationError: the other program read or wrote one of them since the last
                barrier.
        """
        program = self._enter()
        self._refine(cells)
        for other in range(len(self._writes)):
            if other == program:
                continue
            written = self._writes[other]
            if written is not None and self._view(written, cells).any():
                self._conflict(f"programs {other} and {program} write the same cells")
            if self._reads[other] and self._overlaps_reads(other, cells):
                self._conflict(f"program {program} writes what program {other} read")
        mask = self._writes[program]
        if mask is None:
            mask = self._writes[program] = self._empty()
        self._view(mask, cells)[...] = True

    def _refine(self, cells: ByteRange) -> None:
        """Views of smaller elements need finer masks."""
        granule = self._granule
        if cells.itemsize % granule == 0 and not any(s % granule for s in cells.strides):
            return
        self._writes = [None if m is None else np.repeat(m, granule) for m in self._writes]
        self._granule = 1

    def _enter(self) -> int:
        program = LOCAL.program
        assert program is not None
        if program.barriers > self._epoch:
            self._epoch = program.barriers
            self._reads = [[] for _ in self._reads]
            self._writes = [None for _ in self._writes]
        return program.index

    def _overlaps_reads(self, other: int, cells: ByteRange) -> bool:
        read = self._empty()
        for earlier in self._reads[other]:
            self._view(read, earlier)[...] = True
        return bool(self._view(read, cells).any())

    def _empty(self) -> Mask:
        return np.zeros(self._nbytes // self._granule, np.bool_)

    def _view(self, mask: Mask, cells: ByteRange) -> Any:
        granule = self._granule
        if 0 in cells.shape:
            return mask[:0]
        return np.ndarray(
            (*cells.shape, cells.itemsize // granule),
            np.bool_,
            mask,
            cells.offset // granule,
            (*(stride // granule for stride in cells.strides), 1),
        )

    def _conflict(self, what: str) -> None:
        refuse("shared_hbm", what, "no order between two cores without a barrier", _REMEDY)
