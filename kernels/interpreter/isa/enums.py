"""The enumerations of nki.isa."""

from __future__ import annotations

from enum import Enum

__all__ = [
    "dge_mode",
    "dma_engine",
    "engine",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "scalar_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
]


class _IsaEnum(Enum):
    # Identity hash: members are part of the plans' keys, and Enum's own hash is a Python call.
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __repr__ = __str__


class engine(_IsaEnum):  # noqa: N801 - public name
    """Which engine executes an instruction."""

    tensor = "tensor"
    vector = "vector"
    scalar = "scalar"
    gpsimd = "gpsimd"
    dma = "dma"
    sync = "sync"
    unknown = "unknown"


class reduce_cmd(_IsaEnum):  # noqa: N801 - public name
    """What happens to the accumulator of a reducing instruction."""

    idle = "idle"
    reset = "reset"
    reduce = "reduce"
    reset_reduce = "reset_reduce"
    load_reduce = "load_reduce"


class dge_mode(_IsaEnum):  # noqa: N801 - public name
    """Who generates the descriptors of a DMA."""

    unknown = "unknown"
    swdge = "swdge"
    hwdge = "hwdge"
    none = "none"


class oob_mode(_IsaEnum):  # noqa: N801 - public name
    """What an out-of-bounds index of an indirect DMA does."""

    error = "error"
    skip = "skip"


class matmul_perf_mode(_IsaEnum):  # noqa: N801 - public name
    """fp8 modes of the tensor engine."""

    none = "none"
    double_row = "double_row"


class nc_version(_IsaEnum):  # noqa: N801 - public name
    """NeuronCore generations: gen3 is trn2."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(_IsaEnum):  # noqa: N801 - public name
    """Who moves the data of sendrecv."""

    dma = "dma"
    gpsimd_dma = "gpsimd_dma"


tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown
