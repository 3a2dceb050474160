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
from kernels.interpreter.isa.dma import dma_copy
from kernels.interpreter.isa.elementwise import (
    reciprocal,
    scalar_tensor_tensor,
    tensor_scalar,
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
from kernels.interpreter.isa.movement import memset, tensor_copy, tensor_copy_predicated
from kernels.interpreter.isa.pattern import affine_select, iota
from kernels.interpreter.isa.reduction import tensor_reduce
from kernels.interpreter.isa.scalar_engine import activation, activation_reduce
from kernels.interpreter.isa.search import max8, nc_find_index8, nc_match_replace8
from kernels.interpreter.isa.tensor_engine import nc_matmul, nc_transpose
from kernels.interpreter.registers import VirtualRegister

__all__ = [
    "NkiValidationError",
    "VirtualRegister",
    "activation",
    "activation_reduce",
    "affine_select",
    "dge_mode",
    "dma_copy",
    "dma_engine",
    "engine",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "scalar_engine",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_tensor",
    "unknown_engine",
    "vector_engine",
]
