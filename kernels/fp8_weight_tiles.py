"""Columns of a prepared fp8 weight, dequantised in SBUF (weight_layout.PreparedFp8)."""

from __future__ import annotations

from typing import Any

from kernels.fp8_activation import BLOCK
from kernels.launch import nisa, nl
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, ceil_div

__all__ = ["chunk_columns", "weight_columns"]

# fp8 and bf16 copies of a weight chunk: 3 bytes for each of these elements of a partition.
_CHUNK_ELEMENTS = 32768
_SCALES_PER_TILE = PARTITIONS // BLOCK


def chunk_columns(num_k_tiles: int) -> int:
    """Columns that stay in SBUF at once: whole blocks, whole PSUM banks where K is small."""
    columns = max(BLOCK, _CHUNK_ELEMENTS // num_k_tiles // BLOCK * BLOCK)
    if columns > PSUM_BANK_FP32:
        return min(4, columns // PSUM_BANK_FP32) * PSUM_BANK_FP32
    return columns


def weight_columns(codes_hbm: Any, scale_hbm: Any, column: int, columns: int) -> Any:
    """bf16 [128, K/128, columns]: codes times scales, exact; column and columns in whole blocks.

    A DMA with stride 0 hands each scale to the 32 partitions it serves; VectorE multiplies half of
    the k tiles and GpSimd the others, scales broadcast over 32 columns. ScalarE cannot help: its
    scale is one number a partition.
    """
    num_k_tiles = codes_hbm.shape[0] // PARTITIONS
    width = codes_hbm.shape[1]
    blocks = columns // BLOCK
    width_blocks = width // BLOCK
    codes_sb = nl.ndarray((PARTITIONS, num_k_tiles, columns), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=codes_sb,
        src=codes_hbm.ap(
            pattern=[[width, PARTITIONS], [width * PARTITIONS, num_k_tiles], [1, columns]],
            offset=column,
        ),
    )
    scale_sb = nl.ndarray((PARTITIONS, num_k_tiles, blocks), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=scale_sb,
        src=scale_hbm.ap(
            pattern=[
                [width_blocks, _SCALES_PER_TILE],
                [0, BLOCK],
                [width_blocks * _SCALES_PER_TILE, num_k_tiles],
                [1, blocks],
            ],
            offset=column // BLOCK,
        ),
    )
    weight_sb = nl.ndarray((PARTITIONS, num_k_tiles, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    codes = codes_sb.view(nl.float8_e4m3)
    vector_tiles = ceil_div(num_k_tiles, 2)
    _scale_tiles(weight_sb, codes, scale_sb, 0, vector_tiles, nisa.engine.vector)
    if vector_tiles < num_k_tiles:
        _scale_tiles(weight_sb, codes, scale_sb, vector_tiles, num_k_tiles, nisa.engine.gpsimd)
    return weight_sb


def _scale_tiles(
    weight_sb: Any, codes: Any, scale_sb: Any, first: int, end: int, engine: Any
) -> None:
    """weight = codes * scale in k tiles first..end, on one engine."""
    blocks = scale_sb.shape[2]
    by_block = (PARTITIONS, end - first, blocks, BLOCK)
    nisa.tensor_tensor(
        dst=weight_sb[:, first:end, :].reshape(by_block),
        data1=codes[:, first:end, :].reshape(by_block),
        data2=scale_sb[:, first:end, :].expand_dim(3).broadcast(3, BLOCK),
        op=nl.multiply,
        engine=engine,
    )
