"""Power-of-two block scales on chip, by bits: ScalarE's exp2 and log2 are approximations.

P partitions (rows)    B blocks of a row
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = ["block_maxima", "ceiling_exponents", "exponent_bytes", "magnitudes", "powers_of_two"]

_EXPONENT_SHIFT = 23
_MANTISSA_MASK = 0x7FFFFF
_BF16_MAGNITUDE_MASK = 0x7FFF


def magnitudes(x_sb: Any) -> Any:
    """|x| of bf16 [P, K], by clearing the sign bit."""
    magnitude_sb = nl.ndarray(x_sb.shape, dtype=nl.uint16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=magnitude_sb,
        data=x_sb.view(nl.uint16),
        op0=nl.bitwise_and,
        operand0=_BF16_MAGNITUDE_MASK,
    )
    return magnitude_sb.view(nl.bfloat16)


def block_maxima(magnitude_sb: Any, block: int) -> Any:
    """fp32 [P, K/block] of magnitudes [P, K]."""
    partitions, channels = magnitude_sb.shape
    blocks = channels // block
    amax_sb = nl.ndarray((partitions, blocks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(
        dst=amax_sb,
        op=nl.maximum,
        data=magnitude_sb.reshape((partitions, blocks, block)),
        axis=2,
    )
    return amax_sb


def ceiling_exponents(t_sb: Any) -> Any:
    """Biased exponents e of 2^ceil(log2 t) and of its inverse, 254 - e: int32 [P, 2, B].

    t is fp32 [P, B], positive and normal. Everything stays below 2^24, exact in fp32.
    """
    partitions, blocks = t_sb.shape
    exponent_sb = nl.ndarray((partitions, blocks), dtype=nl.int32, buffer=nl.sbuf)
    mantissa_sb = nl.ndarray((partitions, blocks), dtype=nl.int32, buffer=nl.sbuf)
    bits = t_sb.view(nl.int32)
    nisa.tensor_scalar(dst=exponent_sb, data=bits, op0=nl.right_shift, operand0=_EXPONENT_SHIFT)
    nisa.tensor_scalar(dst=mantissa_sb, data=bits, op0=nl.bitwise_and, operand0=_MANTISSA_MASK)
    both_sb = nl.ndarray((partitions, 2, blocks), dtype=nl.int32, buffer=nl.sbuf)
    # Round up: one more where the mantissa is not zero.
    nisa.scalar_tensor_tensor(
        dst=both_sb[:, 0, :],
        data=mantissa_sb,
        op0=nl.not_equal,
        operand0=0.0,
        op1=nl.add,
        operand1=exponent_sb,
    )
    nisa.tensor_scalar(
        dst=both_sb[:, 1, :],
        data=both_sb[:, 0, :],
        op0=nl.multiply,
        operand0=-1.0,
        op1=nl.add,
        operand1=254.0,
    )
    return both_sb


def powers_of_two(exponent_sb: Any) -> Any:
    """fp32 2^(e - 127) of int32 biased exponents, the same shape; e = 0 gives 0."""
    bits_sb = nl.ndarray(exponent_sb.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=bits_sb, data=exponent_sb, op0=nl.left_shift, operand0=_EXPONENT_SHIFT)
    return bits_sb.view(nl.float32)


def exponent_bytes(byte_sb: Any) -> Any:
    """int32 of ue8m0 bytes, the same shape."""
    exponent_sb = nl.ndarray(byte_sb.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=exponent_sb, src=byte_sb)
    return exponent_sb
