"""Activation quantisation on chip: per 32 channels, e4m3 up to 240, power-of-two scales.

Bit-exact to model.md §2.1 with 240 in place of 448: amax clamped at 1e-4, times fl32(1/240) in
fp32, rounded up to a power of two by its bits; codes to nearest even.

x * 2^-k is exact, and |x| * 2^-k <= 240 for every bf16 x (a larger one is at least 241, whose
scale would have rounded up), so that the cast cannot overflow and needs no clamp.
"""

from __future__ import annotations

from typing import Any

from kernels.channel_tiles import CHUNK_CHANNELS, load_rows, transpose_rows
from kernels.launch import nisa, nl
from kernels.power_of_two_scale import (
    block_maxima,
    ceiling_exponents,
    magnitudes,
    powers_of_two,
)
from kernels.tiling import PARTITIONS

__all__ = ["BLOCK", "activations_by_channel", "block_codes", "block_exponents"]

BLOCK = 32
_SMALLEST_AMAX = 1e-4
_RECIPROCAL_240 = float.fromhex("0x1.111112p-8")  # fl32(1/240)


def block_exponents(x_sb: Any) -> Any:
    """int32 [P, 2, K/32] of x [P, K] bf16: biased exponents of the scales and their inverses."""
    scale_sb = block_maxima(magnitudes(x_sb), BLOCK)
    nisa.tensor_scalar(
        dst=scale_sb,
        data=scale_sb,
        op0=nl.maximum,
        operand0=_SMALLEST_AMAX,
        op1=nl.multiply,
        operand1=_RECIPROCAL_240,
    )
    return ceiling_exponents(scale_sb)


def block_codes(x_sb: Any, inverse_sb: Any) -> Any:
    """float8_e4m3 [P, K/32, 32] of x [P, K] bf16 and inverse scales fp32 [P, K/32]."""
    partitions, channels = x_sb.shape
    blocks = channels // BLOCK
    codes_sb = nl.ndarray((partitions, blocks, BLOCK), dtype=nl.float8_e4m3, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=codes_sb,
        data1=x_sb.reshape((partitions, blocks, BLOCK)),
        data2=inverse_sb.expand_dim(2).broadcast(2, BLOCK),
        op=nl.multiply,
    )
    return codes_sb


def activations_by_channel(
    x_hbm: Any, first_token: int, num_tokens: int, num_k_tiles: int, fold: int
) -> Any:
    """Rows of x [T, K] bf16, quantised and dequantised, as a tile of channel_tiles.py (bf16).

    Values on the grid have 4 significant bits, so bf16 holds them exactly.
    """
    tiles_per_row = num_k_tiles // fold
    width = tiles_per_row * PARTITIONS
    x_rows = x_hbm.reshape((x_hbm.shape[0] * fold, x_hbm.shape[1] // fold))
    tile_tokens = PARTITIONS // fold
    xt_sb = nl.ndarray(
        (PARTITIONS, tiles_per_row, num_tokens, fold), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    for token in range(0, num_tokens, tile_tokens):
        rows = min(tile_tokens, num_tokens - token) * fold
        begin = (first_token + token) * fold
        for channel in range(0, width, CHUNK_CHANNELS):
            chunk = min(CHUNK_CHANNELS, width - channel)
            grid_sb = _on_grid(load_rows(x_rows, begin, rows, channel, chunk))
            transpose_rows(grid_sb, xt_sb, channel // PARTITIONS, token, fold)
    return xt_sb


def _on_grid(x_sb: Any) -> Any:
    """x [P, K] bf16 rounded onto the fp8 grid, as bf16."""
    partitions, channels = x_sb.shape
    blocks = channels // BLOCK
    factors = powers_of_two(block_exponents(x_sb))
    codes_sb = block_codes(x_sb, factors[:, 1, :])
    grid_sb = nl.ndarray((partitions, channels), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=grid_sb.reshape((partitions, blocks, BLOCK)),
        data1=codes_sb,
        data2=factors[:, 0, :].expand_dim(2).broadcast(2, BLOCK),
        op=nl.multiply,
    )
    return grid_sb
