"""Operands of prefill attention in SBUF: queries and keys by channel, rows, and the mask.

G tokens of a tile    H heads    I tiles of a query block    D head dim, cut into pieces D' <= 128
P partitions of a visit with J rows each; its keys are ordered (j, p), K = J * P of them
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = ["load_visit", "mask_bias", "queries_by_channel", "rows_by_channel", "token_columns"]

# Far below every score and still finite times any scale; exact in bf16 only in size, which is all
# that matters.
_MASKED_SCORE = 1e36


def token_columns(block_tokens: int, tiles: int, heads: int) -> Any:
    """bf16 [tokens, I, G * H]: 1 where softmax row r of tile i belongs to the partition's token."""
    tile_tokens = block_tokens // tiles
    owner_sb = nl.ndarray(
        (block_tokens, tiles, tile_tokens, heads), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    nisa.memset(dst=owner_sb, value=1.0)
    # token - i * G - g is zero exactly at the token's own rows.
    nisa.affine_select(
        dst=owner_sb,
        pattern=[[-tile_tokens, tiles], [-1, tile_tokens], [0, heads]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=owner_sb,
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    return owner_sb.reshape((block_tokens, tiles, tile_tokens * heads))


def queries_by_channel(q_rows: Any, row: int, rows: int, piece: int) -> Any:
    """bf16 [D', D/D', rows] of q rows (t, h) [.., D]."""
    head_dim = q_rows.shape[1]
    pieces = head_dim // piece
    q_sb = nl.ndarray((rows, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf)
    qt_sb = nl.ndarray((piece, pieces, rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    qt_psum = nl.ndarray((piece, pieces, rows), dtype=nl.bfloat16, buffer=nl.psum)
    nisa.dma_copy(dst=q_sb, src=q_rows[row : row + rows, :])
    for i in range(pieces):
        nisa.nc_transpose(
            dst=qt_psum[:, i, :],
            data=q_sb[:, i * piece : (i + 1) * piece],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(dst=qt_sb, src=qt_psum)
    return qt_sb


def load_visit(rows_hbm: Any, start: Any, partitions: int, rows_a_partition: int) -> Any:
    """bf16 [P, J, D]: J neighbouring rows a partition, from row `start` (a 1x1 tile) on."""
    head_dim = rows_hbm.shape[1]
    rows_sb = nl.ndarray(
        (partitions, rows_a_partition, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    width = rows_a_partition * head_dim
    nisa.dma_copy(
        dst=rows_sb,
        src=rows_hbm.ap(
            pattern=[[width, partitions], [1, width]], scalar_offset=start, indirect_dim=0
        ),
    )
    return rows_sb


def rows_by_channel(rows_sb: Any, piece: int) -> Any:
    """k^T bf16 [D', D/D', K] of rows [P, J, D]."""
    partitions, per_partition, head_dim = rows_sb.shape
    pieces = head_dim // piece
    kt_sb = nl.ndarray(
        (piece, pieces, per_partition * partitions), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    for i in range(pieces):
        kt_psum = nl.ndarray((piece, per_partition, partitions), dtype=nl.bfloat16, buffer=nl.psum)
        for j in range(per_partition):
            nisa.nc_transpose(
                dst=kt_psum[:, j, :],
                data=rows_sb[:, j, i * piece : (i + 1) * piece],
                engine=nisa.engine.tensor,
            )
        engine = nisa.engine.scalar if i % 2 == 0 else nisa.engine.vector
        nisa.tensor_copy(dst=kt_sb[:, i, :], src=kt_psum, engine=engine)
    return kt_sb


def mask_bias(allowed: Any) -> Any:
    """bf16 [tokens, K] of bytes allowed [tokens, K] in HBM: 0 where 1, far below any score where 0.

    GpSimd makes it, which has nothing else to do; a matmul spreads it over the heads.
    """
    block_tokens, keys = allowed.shape
    allowed_sb = nl.ndarray((block_tokens, keys), dtype=nl.uint8, buffer=nl.sbuf)
    bias_sb = nl.ndarray((block_tokens, keys), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=allowed_sb, src=allowed)
    nisa.tensor_scalar(
        dst=bias_sb,
        data=allowed_sb,
        op0=nl.subtract,
        operand0=1.0,
        op1=nl.multiply,
        operand1=_MASKED_SCORE,
        engine=nisa.engine.gpsimd,
    )
    return bias_sb
