"""Activation quantisation on chip: per 32 channels, e4m3 up to 240, power-of-two scales.

Bit-exact to model.md §2.1 with 240 in place of 448: amax clamped at 1e-4, times fl32(1/240) in
fp32, rounded up to a power of two by its bits; codes to nearest even. ScalarE's exp2 and log2 are
approximations and are never used for scales.

x * 2^-k is exact, and |x| * 2^-k <= 240 for every bf16 x (a larger one is at least 241, whose
scale would have rounded up), so that the cast cannot overflow and needs no clamp.
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl
from kernels.tiling import PARTITIONS

__all__ = ["BLOCK", "activations_by_channel", "block_codes", "block_scales"]

BLOCK = 32
_SMALLEST_AMAX = 1e-4
_RECIPROCAL_240 = float.fromhex("0x1.111112p-8")  # fl32(1/240)
_EXPONENT_SHIFT = 23
_MANTISSA_MASK = 0x7FFFFF
_BF16_MAGNITUDE_MASK = 0x7FFF
# Channels quantised at once: 4096 take 28 KiB of a partition.
_CHUNK_CHANNELS = 4096


def block_scales(x_sb: Any) -> Any:
    """Exponents of the scales of x [P, K] bf16 and of their inverses.

    Returns int32 [P, 2, K/32]: biased exponents e of the scale 2^(e-127), then 254 - e.
    """
    partitions, channels = x_sb.shape
    blocks = channels // BLOCK
    magnitude_sb = nl.ndarray((partitions, channels), dtype=nl.uint16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=magnitude_sb,
        data=x_sb.view(nl.uint16),
        op0=nl.bitwise_and,
        operand0=_BF16_MAGNITUDE_MASK,
    )
    scale_sb = nl.ndarray((partitions, blocks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(
        dst=scale_sb,
        op=nl.maximum,
        data=magnitude_sb.view(nl.bfloat16).reshape((partitions, blocks, BLOCK)),
        axis=2,
    )
    nisa.tensor_scalar(
        dst=scale_sb,
        data=scale_sb,
        op0=nl.maximum,
        operand0=_SMALLEST_AMAX,
        op1=nl.multiply,
        operand1=_RECIPROCAL_240,
    )
    exponent_sb = nl.ndarray((partitions, blocks), dtype=nl.int32, buffer=nl.sbuf)
    mantissa_sb = nl.ndarray((partitions, blocks), dtype=nl.int32, buffer=nl.sbuf)
    bits = scale_sb.view(nl.int32)
    nisa.tensor_scalar(dst=exponent_sb, data=bits, op0=nl.right_shift, operand0=_EXPONENT_SHIFT)
    nisa.tensor_scalar(dst=mantissa_sb, data=bits, op0=nl.bitwise_and, operand0=_MANTISSA_MASK)
    both_sb = nl.ndarray((partitions, 2, blocks), dtype=nl.int32, buffer=nl.sbuf)
    # Round up: one more where the mantissa is not zero. Below 2^24, so exact in fp32.
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


def block_codes(x_sb: Any, exponents_sb: Any) -> Any:
    """(codes float8_e4m3 [P, K/32, 32], factors fp32 [P, 2, K/32]: scales and inverses)."""
    partitions, channels = x_sb.shape
    blocks = channels // BLOCK
    bits_sb = nl.ndarray((partitions, 2, blocks), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=bits_sb, data=exponents_sb, op0=nl.left_shift, operand0=_EXPONENT_SHIFT)
    factors = bits_sb.view(nl.float32)
    codes_sb = nl.ndarray((partitions, blocks, BLOCK), dtype=nl.float8_e4m3, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=codes_sb,
        data1=x_sb.reshape((partitions, blocks, BLOCK)),
        data2=factors[:, 1, :].expand_dim(2).broadcast(2, BLOCK),
        op=nl.multiply,
    )
    return codes_sb, factors


def activations_by_channel(
    x_hbm: Any, first_token: int, num_tokens: int, num_k_tiles: int, fold: int
) -> Any:
    """Quantised, dequantised and transposed rows, ready to be a stationary operand.

    Args:
        x_hbm: [T, K] bf16.
        num_k_tiles: 128-channel tiles of the (zero-padded) K.
        fold: a token's channels lie on this many partitions while they are quantised; divides
            num_k_tiles, and is 1 where K is no multiple of 128.

    Returns bf16 [128, num_k_tiles / fold, num_tokens, fold]: entry (p, j, t, f) is channel
    (f * num_k_tiles / fold + j) * 128 + p of token first_token + t. Folding costs nothing and
    divides the transposes by `fold` as well.
    """
    channels = x_hbm.shape[1]
    tiles_per_row = num_k_tiles // fold
    width = tiles_per_row * PARTITIONS
    real_width = channels // fold
    x_rows = x_hbm.reshape((x_hbm.shape[0] * fold, real_width))
    tile_tokens = PARTITIONS // fold
    xt_sb = nl.ndarray(
        (PARTITIONS, tiles_per_row, num_tokens, fold), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    for token in range(0, num_tokens, tile_tokens):
        tokens = min(tile_tokens, num_tokens - token)
        rows = tokens * fold
        begin = (first_token + token) * fold
        for channel in range(0, width, _CHUNK_CHANNELS):
            chunk = min(_CHUNK_CHANNELS, width - channel)
            real = min(chunk, real_width - channel)
            x_sb = nl.ndarray((rows, chunk), dtype=nl.bfloat16, buffer=nl.sbuf)
            if real < chunk:
                nisa.memset(dst=x_sb, value=0.0)
            nisa.dma_copy(
                dst=x_sb[:, 0:real],
                src=x_rows[begin : begin + rows, channel : channel + real],
            )
            _transpose_tiles(_on_grid(x_sb), xt_sb, channel // PARTITIONS, token, tokens, fold)
    return xt_sb


def _on_grid(x_sb: Any) -> Any:
    """x [P, K] bf16 rounded onto the fp8 grid, as bf16 values (4 significant bits, exact)."""
    partitions, channels = x_sb.shape
    blocks = channels // BLOCK
    codes_sb, factors = block_codes(x_sb, block_scales(x_sb))
    grid_sb = nl.ndarray((partitions, channels), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=grid_sb.reshape((partitions, blocks, BLOCK)),
        data1=codes_sb,
        data2=factors[:, 0, :].expand_dim(2).broadcast(2, BLOCK),
        op=nl.multiply,
    )
    return grid_sb


def _transpose_tiles(
    grid_sb: Any, xt_sb: Any, first_tile: int, token: int, tokens: int, fold: int
) -> None:
    """Transpose 128-channel tiles of grid [rows, K] into xt; one PSUM bank holds several."""
    rows, channels = grid_sb.shape
    num_tiles = channels // PARTITIONS
    tiles_per_bank = max(1, 1024 // rows)
    for tile in range(0, num_tiles, tiles_per_bank):
        tiles = min(tiles_per_bank, num_tiles - tile)
        t_psum = nl.ndarray((PARTITIONS, tiles, rows), dtype=nl.bfloat16, buffer=nl.psum)
        for i in range(tiles):
            column = (tile + i) * PARTITIONS
            nisa.nc_transpose(
                dst=t_psum[:, i, :],
                data=grid_sb[:, column : column + PARTITIONS],
                engine=nisa.engine.tensor,
            )
        begin = first_tile + tile
        nisa.tensor_copy(
            dst=xt_sb[:, begin : begin + tiles, token : token + tokens, :],
            src=t_psum.reshape((PARTITIONS, tiles, tokens, fold)),
        )
