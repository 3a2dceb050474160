"""The fp32 accumulators of an engine: one a partition, shared by its reducing instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter import limits
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face

__all__ = ["IDENTITY", "Accumulators"]

Array = npt.NDArray[Any]
IDENTITY = {
    np.add: np.float32(0),
    np.multiply: np.float32(1),
    np.maximum: np.float32(-np.inf),
    np.minimum: np.float32(np.inf),
}


class Accumulators:
    """Values and which of them were set since the kernel began."""

    __slots__ = ("_is_set", "_values")

    def __init__(self) -> None:
        self._values = np.zeros((limits.MAX_PARTITIONS, 1), np.float32)
        self._is_set = np.zeros((limits.MAX_PARTITIONS, 1), np.bool_)

    def values(self, face: Face) -> Array:
        """The accumulators of the operand's partitions.

        Raises:
            NkiValidationError: one was never set in this kernel.
        """
        rows = self._rows(face)
        if not self._is_set[rows].all():
            refuse(
                "reduce_cmd",
                "reads accumulators that were never reset",
                "they hold what an earlier instruction left",
                "start with reduce_cmd.reset_reduce",
            )
        return self._values[rows]

    def set(self, face: Face, values: Any) -> None:
        """Overwrite the accumulators of the operand's partitions."""
        rows = self._rows(face)
        self._values[rows] = values
        self._is_set[rows] = True

    def update(self, face: Face, command: str, ufunc: Any, partial: Any, initial: Any) -> None:
        """Apply a reduce_cmd: reset to `initial`, and combine with `partial`."""
        if command in ("reset", "reset_reduce", "load_reduce"):
            self.set(face, initial)
        if command in ("reduce", "reset_reduce", "load_reduce"):
            self.set(face, ufunc(self.values(face), partial))

    @staticmethod
    def _rows(face: Face) -> slice:
        return slice(face.start_partition, face.start_partition + face.partitions)
