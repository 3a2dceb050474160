"""`nki.language`: tensors, dtypes, operation names, loops and eager helpers."""

from kernels.interpreter.dtypes import DTYPES, DType
from kernels.interpreter.language.creation import (
    empty_like,
    full,
    ndarray,
    ones,
    rand,
    random_seed,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from kernels.interpreter.language.grid import (
    ds,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    num_programs,
    program_id,
    program_ndim,
)
from kernels.interpreter.language.loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    sequential_range,
    static_range,
    while_loop,
)
from kernels.interpreter.language.operations import BINARY, OTHER, UNARY
from kernels.interpreter.language.reductions import (
    all,
    max,
    mean,
    min,
    prod,
    rms_norm,
    softmax,
    sum,
    var,
)
from kernels.interpreter.language.rounding import (
    ceil,
    cos,
    floor,
    invert,
    logical_not,
    negative,
    reciprocal,
    tan,
    trunc,
)
from kernels.interpreter.language.tile_size import _TileSize, tile_size
from kernels.interpreter.language.tiles import (
    broadcast_to,
    device_print,
    dropout,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    matmul,
    no_reorder,
    store,
    transpose,
    where,
)
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.nki_object import NKIObject
from kernels.interpreter.tensor import NkiTensor

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
hbm = private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm

bool_ = DTYPES["bool_"]
int8 = DTYPES["int8"]
int16 = DTYPES["int16"]
int32 = DTYPES["int32"]
uint8 = DTYPES["uint8"]
uint16 = DTYPES["uint16"]
uint32 = DTYPES["uint32"]
float16 = DTYPES["float16"]
float32 = DTYPES["float32"]
bfloat16 = DTYPES["bfloat16"]
tfloat32 = DTYPES["tfloat32"]
float8_e4m3 = DTYPES["float8_e4m3"]
float8_e5m2 = DTYPES["float8_e5m2"]
float8_e4m3fn = DTYPES["float8_e4m3fn"]
float8_e8m0fnu = DTYPES["float8_e8m0fnu"]
float8_e5m2_x4 = DTYPES["float8_e5m2_x4"]
float8_e4m3fn_x4 = DTYPES["float8_e4m3fn_x4"]
float4_e2m1fn_x4 = DTYPES["float4_e2m1fn_x4"]

add = BINARY["add"]
subtract = BINARY["subtract"]
multiply = BINARY["multiply"]
divide = BINARY["divide"]
maximum = BINARY["maximum"]
minimum = BINARY["minimum"]
abs_max = BINARY["abs_max"]
abs_min = BINARY["abs_min"]
power = BINARY["power"]
fmod = BINARY["fmod"]
mod = BINARY["mod"]
bitwise_and = BINARY["bitwise_and"]
bitwise_or = BINARY["bitwise_or"]
bitwise_xor = BINARY["bitwise_xor"]
left_shift = BINARY["left_shift"]
right_shift = BINARY["right_shift"]
equal = BINARY["equal"]
not_equal = BINARY["not_equal"]
less = BINARY["less"]
less_equal = BINARY["less_equal"]
greater = BINARY["greater"]
greater_equal = BINARY["greater_equal"]
logical_and = BINARY["logical_and"]
logical_or = BINARY["logical_or"]
logical_xor = BINARY["logical_xor"]
square = UNARY["square"]
exp = UNARY["exp"]
log = UNARY["log"]
sqrt = UNARY["sqrt"]
rsqrt = UNARY["rsqrt"]
tanh = UNARY["tanh"]
sigmoid = UNARY["sigmoid"]
relu = UNARY["relu"]
gelu = UNARY["gelu"]
gelu_apprx_sigmoid = UNARY["gelu_apprx_sigmoid"]
gelu_apprx_tanh = UNARY["gelu_apprx_tanh"]
gelu_dx = UNARY["gelu_dx"]
gelu_apprx_sigmoid_dx = UNARY["gelu_apprx_sigmoid_dx"]
silu = UNARY["silu"]
silu_dx = UNARY["silu_dx"]
softplus = UNARY["softplus"]
mish = UNARY["mish"]
erf = UNARY["erf"]
erf_dx = UNARY["erf_dx"]
copy = UNARY["copy"]
sin = UNARY["sin"]
arctan = UNARY["arctan"]
sign = UNARY["sign"]
abs = UNARY["abs"]
average = OTHER["average"]
prelu = OTHER["prelu"]
bypass = OTHER["bypass"]

__all__ = [
    "DType",
    "MemoryRegion",
    "NKIObject",
    "NkiTensor",
    "_TileSize",
    "abs",
    "abs_max",
    "abs_min",
    "add",
    "affine_range",
    "all",
    "arctan",
    "average",
    "bfloat16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool_",
    "broadcast_to",
    "bypass",
    "ceil",
    "copy",
    "cos",
    "device_print",
    "divide",
    "dropout",
    "ds",
    "dynamic_range",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "float4_e2m1fn_x4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "floor",
    "fmod",
    "fori_loop",
    "full",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "hbm",
    "int8",
    "int16",
    "int32",
    "invert",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "left_shift",
    "less",
    "less_equal",
    "load",
    "load_transpose2d",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "ndarray",
    "negative",
    "no_reorder",
    "not_equal",
    "num_programs",
    "ones",
    "power",
    "prelu",
    "private_hbm",
    "prod",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sbuf",
    "sequential_range",
    "shared_constant",
    "shared_hbm",
    "shared_identity_matrix",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "static_range",
    "store",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "tfloat32",
    "tile_size",
    "transpose",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "var",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]
