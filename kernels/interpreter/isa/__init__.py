"""`nki.isa`: the instructions of trn2, one file an engine or a purpose."""

from kernels.interpreter.errors import NkiValidationError
from kernels.interpreter.isa.control import (
    get_nc_sub_version,
    get_nc_version,
    register_alloc,
    register_load,
    register_move,
    register_store,
)
from kernels.interpreter.isa.cores import (
    core_barrier,
    sendrecv,
)
from kernels.interpreter.isa.dma import (
    dma_copy,
)
from kernels.interpreter.isa.dma_arithmetic import (
    dma_compute,
    dma_transpose,
)
from kernels.interpreter.isa.elementwise import (
    reciprocal,
    tensor_tensor,
)
from kernels.interpreter.isa.enums import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from kernels.interpreter.isa.gathering import (
    local_gather,
    nc_n_gather,
    nc_stream_shuffle,
)
from kernels.interpreter.isa.gpsimd import (
    nonzero_with_count,
    sequence_bounds,
    tensor_partition_reduce,
)
from kernels.interpreter.isa.instruction import (
    NkiInstruction,
)
from kernels.interpreter.isa.movement import (
    memset,
    tensor_copy,
    tensor_copy_predicated,
)
from kernels.interpreter.isa.pattern import (
    affine_select,
    iota,
)
from kernels.interpreter.isa.randomness import (
    dropout,
    rand_get_state,
    rand_set_state,
    rng,
    set_rng_seed,
)
from kernels.interpreter.isa.reduction import (
    tensor_reduce,
)
from kernels.interpreter.isa.scalar_engine import (
    activation,
    activation_reduce,
)
from kernels.interpreter.isa.scalar_operand import (
    scalar_tensor_tensor,
    tensor_scalar,
)
from kernels.interpreter.isa.scan import (
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from kernels.interpreter.isa.search import (
    max8,
    nc_find_index8,
    nc_match_replace8,
)
from kernels.interpreter.isa.selection import (
    range_select,
    select_reduce,
)
from kernels.interpreter.isa.statistics import (
    bn_aggr,
    bn_stats,
)
from kernels.interpreter.isa.tensor_engine import (
    nc_matmul,
    nc_transpose,
)
from kernels.interpreter.isa.unavailable import (
    activate2,
    exponential,
    nc_matmul_mx,
    quantize_mx,
    rand2,
    topk,
)
from kernels.interpreter.registers import VirtualRegister

__all__ = [
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "exponential",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "nonzero_with_count",
    "oob_mode",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
    "unknown_engine",
    "vector_engine",
]
