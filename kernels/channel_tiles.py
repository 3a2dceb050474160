"""Rows of activations transposed to channels on partitions, ready to be a stationary operand.

Entry (p, j, t, f) of such a tile [128, num_k_tiles / fold, T, fold] is channel
(f * num_k_tiles / fold + j) * 128 + p of token t. A token's channels lie on `fold` partitions
while they are loaded: with few tokens that fills the lanes and divides the transposes by `fold`.
`fold` divides num_k_tiles, and is 1 where K is no multiple of 128.
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl
from kernels.tiling import PARTITIONS

__all__ = ["CHUNK_CHANNELS", "contract", "load_rows", "rows_by_channel", "transpose_rows"]

# Channels of a row in SBUF at once.
CHUNK_CHANNELS = 4096
# 16-bit elements of one PSUM bank.
_BANK_ELEMENTS = 1024


def load_rows(x_rows: Any, begin: int, rows: int, channel: int, chunk: int) -> Any:
    """bf16 [rows, chunk] of an HBM tensor [R, W] from (begin, channel); zeros beyond W."""
    real = min(chunk, x_rows.shape[1] - channel)
    x_sb = nl.ndarray((rows, chunk), dtype=nl.bfloat16, buffer=nl.sbuf)
    if real < chunk:
        nisa.memset(dst=x_sb, value=0.0)
    nisa.dma_copy(dst=x_sb[:, 0:real], src=x_rows[begin : begin + rows, channel : channel + real])
    return x_sb


def transpose_rows(x_sb: Any, xt_sb: Any, first_tile: int, token: int, fold: int) -> None:
    """Transpose x [tokens * fold, chunk] into xt from k tile `first_tile` and `token` on."""
    rows, channels = x_sb.shape
    tokens = rows // fold
    num_tiles = channels // PARTITIONS
    tiles_per_bank = max(1, _BANK_ELEMENTS // rows)
    for tile in range(0, num_tiles, tiles_per_bank):
        tiles = min(tiles_per_bank, num_tiles - tile)
        t_psum = nl.ndarray((PARTITIONS, tiles, rows), dtype=nl.bfloat16, buffer=nl.psum)
        for i in range(tiles):
            column = (tile + i) * PARTITIONS
            nisa.nc_transpose(
                dst=t_psum[:, i, :],
                data=x_sb[:, column : column + PARTITIONS],
                engine=nisa.engine.tensor,
            )
        begin = first_tile + tile
        nisa.tensor_copy(
            dst=xt_sb[:, begin : begin + tiles, token : token + tokens, :],
            src=t_psum.reshape((PARTITIONS, tiles, tokens, fold)),
        )


def rows_by_channel(
    x_hbm: Any, first_token: int, num_tokens: int, num_k_tiles: int, fold: int, dtype: Any
) -> Any:
    """x [T, K] bf16 as [128, num_k_tiles / fold, num_tokens, fold] of `dtype`, unchanged."""
    tiles_per_row = num_k_tiles // fold
    width = tiles_per_row * PARTITIONS
    x_rows = x_hbm.reshape((x_hbm.shape[0] * fold, x_hbm.shape[1] // fold))
    tile_tokens = PARTITIONS // fold
    xt_sb = nl.ndarray((PARTITIONS, tiles_per_row, num_tokens, fold), dtype=dtype, buffer=nl.sbuf)
    for token in range(0, num_tokens, tile_tokens):
        rows = min(tile_tokens, num_tokens - token) * fold
        begin = (first_token + token) * fold
        for channel in range(0, width, CHUNK_CHANNELS):
            chunk = min(CHUNK_CHANNELS, width - channel)
            x_sb = load_rows(x_rows, begin, rows, channel, chunk)
            transpose_rows(x_sb, xt_sb, channel // PARTITIONS, token, fold)
    return xt_sb


def contract(xt_sb: Any, weight_sb: Any, y_psum: Any) -> None:
    """y [rows, columns] = x^T [128, j, rows, f] against weight [128, (f j), columns]."""
    tiles_per_row, fold = xt_sb.shape[1], xt_sb.shape[3]
    for f in range(fold):
        for j in range(tiles_per_row):
            k_tile = f * tiles_per_row + j
            nisa.nc_matmul(
                dst=y_psum,
                stationary=xt_sb[:, j, :, f],
                moving=weight_sb[:, k_tile],
                accumulate=k_tile > 0,
            )
