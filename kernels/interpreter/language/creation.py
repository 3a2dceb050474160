"""Tensors with contents: zeros, ones, full, random numbers, constants of the program."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.interpreter import isa
from kernels.interpreter.allocation import allocate, input_tensor
from kernels.interpreter.dtypes import DTYPES, dtype_of
from kernels.interpreter.errors import refuse
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.tensor import NkiTensor

__all__ = [
    "empty_like",
    "full",
    "ndarray",
    "ones",
    "rand",
    "random_seed",
    "shared_constant",
    "shared_identity_matrix",
    "zeros",
    "zeros_like",
]

sbuf = MemoryRegion.sbuf
uint8 = DTYPES["uint8"]


def ndarray(
    shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """An uninitialised tensor; dimension 0 is the partition dimension on chip."""
    return allocate(shape, dtype, buffer, name, address)


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of one value: a memset, and DMA where it lies in HBM."""
    tensor = allocate(shape, dtype, buffer, name, None)
    if tensor.on_chip:
        isa.memset(dst=tensor, value=fill_value)
        return tensor
    flat = tensor.reshape((tensor.size,))
    tile = allocate((1, min(tensor.size, 2048)), dtype, sbuf, "", None)
    isa.memset(dst=tile, value=fill_value)
    for start in range(0, tensor.size, tile.size):
        count = min(tile.size, tensor.size - start)
        isa.dma_copy(dst=flat[start : start + count], src=tile[:, 0:count])
    return tensor


def zeros(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Zeros of the shape of x."""
    return full(x.shape, 0, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Uninitialised, of the shape of x."""
    return allocate(x.shape, dtype or x.dtype, buffer or x.buffer, name, None)


def random_seed(seed: Any) -> None:
    """Seed the generator from an int or a tile."""
    if isinstance(seed, NkiTensor):
        isa.set_rng_seed(src_seeds=seed)
        return
    tile = allocate((1, 1), "uint32", sbuf, "", None)
    isa.memset(dst=tile, value=int(seed))
    isa.set_rng_seed(src_seeds=tile)


def rand(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Uniform numbers in [0, 1)."""
    bits = allocate(shape, "uint32", sbuf, "", None)
    isa.rng(dst=bits)
    # 24 random bits: exact in fp32, and 1.0 is never reached.
    isa.tensor_scalar(dst=bits, data=bits, op0=_token("right_shift"), operand0=8)
    out = allocate(shape, dtype, buffer, name, None)
    isa.tensor_scalar(dst=out, data=bits, op0=_token("multiply"), operand0=2.0**-24)
    return out


def _token(name: str) -> Any:
    from kernels.interpreter.language.operations import BINARY

    return BINARY[name]


def shared_constant(constant: Any) -> NkiTensor:
    """A numpy array as a read-only HBM tensor."""
    array = np.ascontiguousarray(constant)
    kind = dtype_of(array.dtype)
    if kind is None:
        refuse("constant", array.dtype, "a dtype of nki.language", instruction="nl.shared_constant")
    return input_tensor(array.copy(), kind, "constant")


def shared_identity_matrix(n: int, dtype: Any = uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """The n x n identity in HBM, or copied into dst."""
    kind = dtype_of(dtype)
    if kind is None:
        refuse(
            "dtype", repr(dtype), "a dtype of nki.language", instruction="nl.shared_identity_matrix"
        )
    identity = input_tensor(np.eye(n, dtype=np.float32).astype(kind.carrier), kind, "identity")
    if dst is None:
        return identity
    isa.dma_copy(dst=dst, src=identity)
    return dst
