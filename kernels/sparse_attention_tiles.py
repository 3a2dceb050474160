"""Operands of sparse attention in SBUF: indices, mask, transposed queries and keys.

G tokens of a group    H heads    D head dim, cut into pieces D' <= 128    M entries a token
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl
from kernels.tiling import PARTITIONS

__all__ = [
    "absence_mask",
    "channel_piece",
    "gather_indices",
    "gather_rows",
    "keys_by_channel",
    "load_queries",
    "owner_columns",
]

_MASKED_SCORE = -3e38


def channel_piece(head_dim: int) -> int:
    """Largest divisor of head_dim that fits the partitions."""
    piece = 1
    for candidate in range(1, min(head_dim, PARTITIONS) + 1):
        if head_dim % candidate == 0:
            piece = candidate
    return piece


def gather_indices(indices_hbm: Any, token: int, tokens: int, span: Any) -> Any:
    """uint32 [min(M, 128), tokens, M/128]: entries down the partitions, absent ones as row 0.

    span = (first, entries) of a row of indices: M is its length.
    """
    stored = indices_hbm.shape[1]
    entries = span[1]
    offset = token * stored + span[0]
    rows = min(entries, PARTITIONS)
    full_tiles, tail = entries // rows, entries % rows
    tiles = full_tiles + (1 if tail > 0 else 0)
    raw_sb = nl.ndarray((rows, tokens, tiles), dtype=nl.int32, buffer=nl.sbuf)
    if tail > 0:
        nisa.memset(dst=raw_sb, value=-1)
    nisa.dma_copy(
        dst=raw_sb[:, :, 0:full_tiles],
        src=indices_hbm.ap(
            pattern=[[1, rows], [stored, tokens], [rows, full_tiles]], offset=offset
        ),
    )
    if tail > 0:
        nisa.dma_copy(
            dst=raw_sb[0:tail, :, full_tiles:tiles],
            src=indices_hbm.ap(
                pattern=[[1, tail], [stored, tokens], [1, 1]],
                offset=offset + full_tiles * rows,
            ),
        )
    index_sb = nl.ndarray((rows, tokens, tiles), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=index_sb, data=raw_sb, op0=nl.maximum, operand0=0.0)
    return index_sb


def gather_rows(kv_hbm: Any, index_sb: Any) -> Any:
    """bf16 [min(M, 128), tokens, M/128, D]: the rows of kv [n, D] that index_sb names."""
    height, tokens, tiles = index_sb.shape
    head_dim = kv_hbm.shape[1]
    gathered_sb = nl.ndarray((height, tokens, tiles, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf)
    for token in range(tokens):
        for tile in range(tiles):
            nisa.dma_copy(
                dst=gathered_sb[:, token, tile, :],
                src=kv_hbm.ap(
                    pattern=[[head_dim, height], [1, head_dim]],
                    vector_offset=index_sb[:, token, tile : tile + 1],
                    indirect_dim=0,
                ),
            )
    return gathered_sb


def absence_mask(indices_hbm: Any, token: int, tokens: int, heads: int, span: Any) -> Any:
    """fp32 [tokens * heads, M]: -3e38 where the entry is -1, else 0; span as above."""
    stored = indices_hbm.shape[1]
    entries = span[1]
    index_sb = nl.ndarray((tokens * heads, entries), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=index_sb,
        src=indices_hbm.ap(
            pattern=[[stored, tokens], [0, heads], [1, entries]], offset=token * stored + span[0]
        ),
    )
    mask_sb = nl.ndarray((tokens * heads, entries), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=mask_sb,
        data=index_sb,
        op0=nl.less,
        operand0=0.0,
        op1=nl.multiply,
        operand1=_MASKED_SCORE,
    )
    return mask_sb


def load_queries(q_rows: Any, row: int, tokens: int, heads: int, qt_sb: Any) -> None:
    """Transpose q rows (t, h) onto the diagonal blocks of q^T [D', pieces, G, G*H]."""
    rows = tokens * heads
    head_dim = q_rows.shape[1]
    piece, pieces = qt_sb.shape[0], qt_sb.shape[1]
    group_tokens, group_rows = qt_sb.shape[2], qt_sb.shape[3]
    q_sb = nl.ndarray((rows, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=q_sb, src=q_rows[row : row + rows, :])
    qt_psum = nl.ndarray((piece, pieces, rows), dtype=nl.bfloat16, buffer=nl.psum)
    for i in range(pieces):
        nisa.nc_transpose(
            dst=qt_psum[:, i, :],
            data=q_sb[:, i * piece : (i + 1) * piece],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(
        dst=qt_sb.ap(
            pattern=[
                [pieces * group_tokens * group_rows, piece],
                [group_tokens * group_rows, pieces],
                [group_rows + heads, tokens],
                [1, heads],
            ]
        ),
        src=qt_psum.reshape((piece, pieces, tokens, heads)),
    )


def keys_by_channel(rows_sb: Any, piece: int, engine: Any) -> Any:
    """k^T [D', D/D', tiles, entries] of gathered rows [entries, tiles, D], tiles of one bank, which
    `engine` copies out of PSUM."""
    entries, tiles, head_dim = rows_sb.shape
    pieces = head_dim // piece
    kt_sb = nl.ndarray((piece, pieces, tiles, entries), dtype=nl.bfloat16, buffer=nl.sbuf)
    kt_psum = nl.ndarray((piece, pieces, tiles, entries), dtype=nl.bfloat16, buffer=nl.psum)
    for tile in range(tiles):
        for i in range(pieces):
            nisa.nc_transpose(
                dst=kt_psum[:, i, tile, :],
                data=rows_sb[:, tile, i * piece : (i + 1) * piece],
                engine=nisa.engine.tensor,
            )
    nisa.tensor_copy(dst=kt_sb, src=kt_psum, engine=engine)
    return kt_sb


def owner_columns(group_tokens: int, heads: int) -> Any:
    """bf16 [128, G, G*H]: 1 where softmax row r belongs to token t, the same on all partitions."""
    rows = group_tokens * heads
    mask_sb = nl.ndarray((PARTITIONS, group_tokens, rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=mask_sb, value=0.0)
    nisa.memset(
        dst=mask_sb.ap(
            pattern=[
                [group_tokens * rows, PARTITIONS],
                [rows + heads, group_tokens],
                [1, heads],
            ]
        ),
        value=1.0,
    )
    return mask_sb
