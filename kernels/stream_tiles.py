"""Residual streams in SBUF: rows (token, piece), each holding the same channels of all m streams.

T tokens    m streams    d channels    c pieces (fold) of a token's channels, d / c each
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = [
    "CHUNK_CHANNELS",
    "MIN_FOLDED_CHANNELS",
    "load_streams",
    "replicate_by_token",
    "streams_view",
]

CHUNK_CHANNELS = 2048
MIN_FOLDED_CHANNELS = 64


def streams_view(streams_hbm: Any, fold: int, place: Any) -> Any:
    """HBM view [tokens, fold, m, columns] of streams [T, m, d].

    place = (token, tokens, column, columns) with columns counted within a piece.
    """
    m, channels = streams_hbm.shape[1], streams_hbm.shape[2]
    token, tokens, column, columns = place
    return streams_hbm.ap(
        pattern=[[m * channels, tokens], [channels // fold, fold], [channels, m], [1, columns]],
        offset=token * m * channels + column,
    )


def load_streams(streams_hbm: Any, fold: int, place: Any) -> Any:
    """bf16 [tokens * fold, m, columns] in SBUF."""
    rows = place[1] * fold
    streams_sb = nl.ndarray(
        (rows, streams_hbm.shape[1], place[3]), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    nisa.dma_copy(dst=streams_sb, src=streams_view(streams_hbm, fold, place))
    return streams_sb


def replicate_by_token(values_hbm: Any, token: int, tokens: int, fold: int) -> Any:
    """fp32 [tokens * fold, count]: row values_hbm[t] [T, count] on each piece of token t."""
    count = values_hbm.shape[1]
    values_sb = nl.ndarray((tokens * fold, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=values_sb,
        src=values_hbm.ap(pattern=[[count, tokens], [0, fold], [1, count]], offset=token * count),
    )
    return values_sb
