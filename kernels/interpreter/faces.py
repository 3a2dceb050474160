"""What an instruction needs to know of an operand before it looks at any value.

Faces are interned, so that a tuple of faces is a cheap key: an instruction validated once for
these faces keeps its plan.
"""

from __future__ import annotations

from kernels.interpreter.dtypes import DType
from kernels.interpreter.memory import MemoryRegion

__all__ = ["Face", "face_of"]


class Face:
    """Shape, dtype and place of an operand. Compared by identity.

    Attributes:
        partitions, free_size: rows and elements per row (HBM: 1 and all).
        start_partition: first partition on chip.
        start_bytes: first byte within the partition.
        partition_step: 1 where the rows are adjacent partitions.
        indirect: "", "scalar" or "vector".
        nbytes: moved when the operand is read once.
        row_bytes: of the innermost adjacent run.
    """

    __slots__ = (
        "dtype",
        "free_shape",
        "free_size",
        "indirect",
        "nbytes",
        "on_chip",
        "partition_step",
        "partitions",
        "region",
        "row_bytes",
        "shape",
        "size",
        "start_bytes",
        "start_partition",
        "strides",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: DType,
        region: MemoryRegion,
        start_partition: int,
        start_bytes: int,
        indirect: str,
        partition_step: int,
    ) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.region = region
        self.start_partition = start_partition
        self.start_bytes = start_bytes
        self.indirect = indirect
        self.partition_step = partition_step
        self.on_chip = not region.is_hbm
        self.size = 1
        for extent in shape:
            self.size *= extent
        self.partitions = shape[0] if self.on_chip else 1
        self.free_shape = shape[1:] if self.on_chip else shape
        self.free_size = 1
        for extent in self.free_shape:
            self.free_size *= extent

        self.nbytes = self.size * dtype.device_itemsize
        self.row_bytes = self._innermost_run() * dtype.device_itemsize

    def _innermost_run(self) -> int:
        """Adjacent elements that one DMA descriptor moves."""
        run = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != run:
                break
            run *= extent
        return run

    def __str__(self) -> str:
        return f"{self.region} {self.dtype} {list(self.shape)}"


_FACES: dict[tuple[object, ...], Face] = {}


def face_of(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DType,
    region: MemoryRegion,
    start_partition: int,
    start_bytes: int,
    indirect: str,
    partition_step: int = 1,
) -> Face:
    """The one Face of these properties."""
    key = (
        shape,
        strides,
        dtype.name,
        dtype.is_widened,
        region,
        start_partition,
        start_bytes,
        indirect,
        partition_step,
    )
    face = _FACES.get(key)
    if face is None:
        face = _FACES[key] = Face(
            shape, strides, dtype, region, start_partition, start_bytes, indirect, partition_step
        )
    return face
