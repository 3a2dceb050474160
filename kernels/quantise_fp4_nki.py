"""KV and index-key quantiser: e2m1 codes, two a byte, with a scale per 16 or 32 channels.

Dimensions:
    T rows, any number; K channels, a multiple of `block`; block 32 (ue8m0 scales: index keys and
    queries) or 16 (e4m3 scales up to 240: compressed KV).

Layouts: x, y [T, K] bf16 row-major; codes uint8 [T, K/2], the even channel in the low nibble;
scale uint8 [T, K/block].
Accumulation: none; exact by construction, codes and scales are compared bit for bit.
    block 32: scale = pow2ceil(fl32(max(amax, 6 * 2^-126) * fl32(1/6))); x / scale is exact.
    block 16: scale = e4m3(max(amax, 6 * 2^-9) / 6). trn2 has no divide: times fl32(1/6) rounds to
    the same e4m3, because a quotient is either a tie exactly (and stays one) or 2^-8 away from it.
    For the same reason x * (1/scale), made multiples of 2^-16, meets every rounding tie exactly.
    The e2m1 grid is concave in its code: code = rint(min(2v, v + 2, v/2 + 4)), ties to even.
Expected error: none.

Tiling (LNC=2: each core takes half of the rows):
    fold = largest c with block*c | K and T * c <= 128; for 128 folded rows, <= 2048 channels:
        quantise: VectorE |x|, block maxima, scales, v, code + 8 * sign, low + 16 * high
        dequantise: VectorE moves a nibble to e4m3's sign, low exponent and top mantissa bits,
            which reads as value * 2^-6; then * 64 * scale

Refuses: numerics other than trn2's, x that is not bf16, another block; ue8m0 bytes 0 and 255.
Values of x must be finite.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_shape, require_trn2
from kernels.launch import launch, launch_many, nisa, nki, nl
from kernels.power_of_two_scale import (
    block_maxima,
    ceiling_exponents,
    exponent_bytes,
    magnitudes,
    powers_of_two,
)
from kernels.quantise_fp8_nki import require_normal_scales
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["dequantise_fp4", "dequantise_fp4_kernel", "quantise_fp4", "quantise_fp4_kernel"]

_CHUNK_CHANNELS = 2048
_SIXTH = float.fromhex("0x1.555556p-3")  # fl32(1/6)
_SMALLEST_AMAX_32 = 6.0 * 2.0**-126
_SMALLEST_AMAX_16 = 6.0 * 2.0**-9
_FP8_MAX = 240.0
# 192 + v for 0 <= v < 64 has fp32 steps of 2^-16.
_GRID_OF_2_TO_MINUS_16 = 192.0


def _scales_32(amax_sb: Any, byte_sb: Any) -> Any:
    """Inverse scales fp32 [P, B]; ue8m0 bytes into byte_sb."""
    nisa.tensor_scalar(
        dst=amax_sb,
        data=amax_sb,
        op0=nl.maximum,
        operand0=_SMALLEST_AMAX_32,
        op1=nl.multiply,
        operand1=_SIXTH,
    )
    exponents_sb = ceiling_exponents(amax_sb)
    nisa.tensor_copy(dst=byte_sb, src=exponents_sb[:, 0, :])
    return powers_of_two(exponents_sb[:, 1, :])


def _scales_16(amax_sb: Any, byte_sb: Any) -> Any:
    """Inverse scales fp32 [P, B], within an fp32 ulp; e4m3 bytes into byte_sb."""
    nisa.tensor_scalar(
        dst=amax_sb,
        data=amax_sb,
        op0=nl.maximum,
        operand0=_SMALLEST_AMAX_16,
        op1=nl.multiply,
        operand1=_SIXTH,
    )
    fp8 = byte_sb.view(nl.float8_e4m3)
    nisa.tensor_scalar(dst=fp8, data=amax_sb, op0=nl.minimum, operand0=_FP8_MAX)
    inverse_sb = nl.ndarray(amax_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse_sb, data=fp8)
    return inverse_sb


def _packed_codes(x_sb: Any, magnitude_sb: Any, inverse_sb: Any, block: int) -> Any:
    """uint8 [P, K/2] of x [P, K] bf16."""
    rows, columns = x_sb.shape
    v_sb = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    line_sb = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    sign_sb = nl.ndarray((rows, columns), dtype=nl.uint16, buffer=nl.sbuf)
    nibble_sb = nl.ndarray((rows, columns // 2, 2), dtype=nl.uint8, buffer=nl.sbuf)
    byte_sb = nl.ndarray((rows, columns // 2), dtype=nl.uint8, buffer=nl.sbuf)
    by_block = (rows, columns // block, block)
    nisa.tensor_tensor(
        dst=v_sb.reshape(by_block),
        data1=magnitude_sb.reshape(by_block),
        data2=inverse_sb.expand_dim(2).broadcast(2, block),
        op=nl.multiply,
    )
    if block == 16:
        nisa.tensor_scalar(
            dst=v_sb,
            data=v_sb,
            op0=nl.add,
            operand0=_GRID_OF_2_TO_MINUS_16,
            op1=nl.subtract,
            operand1=_GRID_OF_2_TO_MINUS_16,
        )
    nisa.tensor_scalar(
        dst=line_sb, data=v_sb, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=4.0
    )
    nisa.scalar_tensor_tensor(
        dst=line_sb, data=v_sb, op0=nl.add, operand0=2.0, op1=nl.minimum, operand1=line_sb
    )
    nisa.scalar_tensor_tensor(
        dst=line_sb, data=v_sb, op0=nl.multiply, operand0=2.0, op1=nl.minimum, operand1=line_sb
    )
    nisa.tensor_scalar(
        dst=sign_sb,
        data=x_sb.view(nl.uint16),
        op0=nl.right_shift,
        operand0=12,
        op1=nl.bitwise_and,
        operand1=8,
    )
    # The cast to an integer rounds to nearest even; 8 is even, so the sign bit does not disturb.
    nisa.scalar_tensor_tensor(
        dst=nibble_sb.reshape((rows, columns)),
        data=line_sb,
        op0=nl.minimum,
        operand0=7.0,
        op1=nl.add,
        operand1=sign_sb,
    )
    nisa.scalar_tensor_tensor(
        dst=byte_sb,
        data=nibble_sb[:, :, 1],
        op0=nl.multiply,
        operand0=16.0,
        op1=nl.add,
        operand1=nibble_sb[:, :, 0],
    )
    return byte_sb


@nki.jit
def quantise_fp4_kernel(x_hbm: Any, block: int, fold: int) -> Any:
    """x [T, K] bf16 -> codes uint8 [T, K/2], scale uint8 [T, K/block]."""
    num_rows, channels = x_hbm.shape
    width = channels // fold
    codes_hbm = nl.ndarray((num_rows, channels // 2), dtype=nl.uint8, buffer=nl.shared_hbm)
    scale_hbm = nl.ndarray((num_rows, channels // block), dtype=nl.uint8, buffer=nl.shared_hbm)
    x_rows = x_hbm.reshape((num_rows * fold, width))
    codes_rows = codes_hbm.reshape((num_rows * fold, width // 2))
    scale_rows = scale_hbm.reshape((num_rows * fold, width // block))
    first_row, my_rows = core_share(num_rows * fold)
    end_row = first_row + my_rows
    for row in range(first_row, end_row, PARTITIONS):
        rows = min(PARTITIONS, end_row - row)
        for column in range(0, width, _CHUNK_CHANNELS):
            columns = min(_CHUNK_CHANNELS, width - column)
            x_sb = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            scale_sb = nl.ndarray((rows, columns // block), dtype=nl.uint8, buffer=nl.sbuf)
            nisa.dma_copy(dst=x_sb, src=x_rows[row : row + rows, column : column + columns])
            magnitude_sb = magnitudes(x_sb)
            amax_sb = block_maxima(magnitude_sb, block)
            inverse_sb = (
                _scales_32(amax_sb, scale_sb) if block == 32 else _scales_16(amax_sb, scale_sb)
            )
            byte_sb = _packed_codes(x_sb, magnitude_sb, inverse_sb, block)
            half, group = column // 2, column // block
            nisa.dma_copy(dst=codes_rows[row : row + rows, half : half + columns // 2], src=byte_sb)
            nisa.dma_copy(
                dst=scale_rows[row : row + rows, group : group + columns // block], src=scale_sb
            )
    return codes_hbm, scale_hbm


def _unpacked(byte_sb: Any) -> Any:
    """float8_e4m3 [P, 2H] of packed bytes [P, H]: values * 2^-6."""
    rows, halves = byte_sb.shape
    nibble_sb = nl.ndarray((rows, halves, 2), dtype=nl.uint8, buffer=nl.sbuf)
    sign_sb = nl.ndarray((rows, halves * 2), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=nibble_sb[:, :, 0], data=byte_sb, op0=nl.bitwise_and, operand0=15)
    nisa.tensor_scalar(dst=nibble_sb[:, :, 1], data=byte_sb, op0=nl.right_shift, operand0=4)
    flat = nibble_sb.reshape((rows, halves * 2))
    nisa.tensor_scalar(
        dst=sign_sb, data=flat, op0=nl.bitwise_and, operand0=8, op1=nl.left_shift, operand1=4
    )
    nisa.tensor_scalar(
        dst=flat, data=flat, op0=nl.bitwise_and, operand0=7, op1=nl.left_shift, operand1=2
    )
    nisa.tensor_tensor(dst=flat, data1=flat, data2=sign_sb, op=nl.bitwise_or)
    return flat.view(nl.float8_e4m3)


@nki.jit
def dequantise_fp4_kernel(codes_hbm: Any, scale_hbm: Any, block: int, fold: int) -> Any:
    """codes uint8 [T, K/2], scale uint8 [T, K/block] -> y [T, K] bf16."""
    num_rows = codes_hbm.shape[0]
    channels = codes_hbm.shape[1] * 2
    width = channels // fold
    y_hbm = nl.ndarray((num_rows, channels), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    codes_rows = codes_hbm.reshape((num_rows * fold, width // 2))
    scale_rows = scale_hbm.reshape((num_rows * fold, width // block))
    y_rows = y_hbm.reshape((num_rows * fold, width))
    first_row, my_rows = core_share(num_rows * fold)
    end_row = first_row + my_rows
    for row in range(first_row, end_row, PARTITIONS):
        rows = min(PARTITIONS, end_row - row)
        for column in range(0, width, _CHUNK_CHANNELS):
            columns = min(_CHUNK_CHANNELS, width - column)
            groups = columns // block
            half, group = column // 2, column // block
            byte_sb = nl.ndarray((rows, columns // 2), dtype=nl.uint8, buffer=nl.sbuf)
            scale_byte_sb = nl.ndarray((rows, groups), dtype=nl.uint8, buffer=nl.sbuf)
            y_sb = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=byte_sb, src=codes_rows[row : row + rows, half : half + columns // 2])
            nisa.dma_copy(
                dst=scale_byte_sb, src=scale_rows[row : row + rows, group : group + groups]
            )
            if block == 32:
                scale = powers_of_two(exponent_bytes(scale_byte_sb))
            else:
                scale = scale_byte_sb.view(nl.float8_e4m3)
            nisa.scalar_tensor_tensor(
                dst=y_sb.reshape((rows, groups, block)),
                data=_unpacked(byte_sb).reshape((rows, groups, block)),
                op0=nl.multiply,
                operand0=64.0,
                op1=nl.multiply,
                operand1=scale.expand_dim(2).broadcast(2, block),
            )
            nisa.dma_copy(dst=y_rows[row : row + rows, column : column + columns], src=y_sb)
    return y_hbm


def quantise_fp4(
    x: torch.Tensor, block: int, *, numerics: Numerics
) -> tuple[torch.Tensor, torch.Tensor]:
    """codes uint8 [..., K/2] and scale uint8 [..., K/block] of x [..., K] bf16.

    Raises:
        KernelError: UNSUPPORTED numerics or dtype.
        UsageError: block neither 16 nor 32, or it does not divide K.
    """
    op = "quantise_fp4"
    require_trn2(op, numerics)
    require_dtype(op, "x", x, torch.bfloat16)
    channels = x.shape[-1]
    _require_blocks(op, block, channels)
    shapes = ((*x.shape[:-1], channels // 2), (*x.shape[:-1], channels // block))
    if x.numel() == 0:
        return x.new_empty(shapes[0], dtype=torch.uint8), x.new_empty(shapes[1], dtype=torch.uint8)
    rows = x.reshape(-1, channels)
    fold = largest_fold(channels, PARTITIONS // min(rows.shape[0], PARTITIONS), block)
    codes, scale = launch_many(quantise_fp4_kernel, rows, block, fold)
    return codes.reshape(shapes[0]), scale.reshape(shapes[1])


def dequantise_fp4(
    codes: torch.Tensor, scale: torch.Tensor, block: int, *, numerics: Numerics
) -> torch.Tensor:
    """y [..., K] bf16 of codes uint8 [..., K/2] and scale uint8 [..., K/block].

    Raises:
        KernelError: UNSUPPORTED numerics or ue8m0 bytes.
        UsageError: not bytes, unknown block, or shapes that do not meet.
    """
    op = "dequantise_fp4"
    require_trn2(op, numerics)
    require_dtype(op, "codes", codes, torch.uint8)
    require_dtype(op, "scale", scale, torch.uint8)
    channels = codes.shape[-1] * 2
    _require_blocks(op, block, channels)
    require_shape(op, "scale", scale, (*codes.shape[:-1], channels // block))
    shape = (*codes.shape[:-1], channels)
    if codes.numel() == 0:
        return codes.new_empty(shape, dtype=torch.bfloat16)
    if block == 32:
        require_normal_scales(op, scale)
    rows = codes.reshape(-1, channels // 2)
    fold = largest_fold(channels, PARTITIONS // min(rows.shape[0], PARTITIONS), block)
    y = launch(dequantise_fp4_kernel, rows, scale.reshape(-1, channels // block), block, fold)
    return y.reshape(shape)


def _require_blocks(op: str, block: int, channels: int) -> None:
    require(block in (16, 32), op, f"block is {block}: choose 32 (ue8m0) or 16 (e4m3)")
    require(channels % block == 0, op, f"K is {channels}: it must be a multiple of {block}")
