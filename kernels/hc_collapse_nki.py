"""Hyper-connections, streams to the input of a sublayer: x = sum over j of pre_j * streams_j.

Dimensions:
    T tokens, any number; m streams, 1..8; d channels, any.

Layouts: streams [T, m, d] bf16 row-major; pre [T, m] fp32; x [T, d] bf16.
Accumulation: fp32, one rounding to bf16.
Expected error: within the fp32 baseline.

Tiling (LNC=2: each core takes half of the tokens):
    fold = largest c with 64c | d and T * c <= 128: few tokens lie on c partitions each
    for 128 folded rows, for <= 2048 channels: all m streams -> SBUF in one DMA
        VectorE: m instructions, each (streams_j * pre_j) + sum; -> HBM

Refuses: numerics other than trn2's, streams that are not bf16, pre that is not fp32, m > 8.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.stream_tiles import (
    CHUNK_CHANNELS,
    MIN_FOLDED_CHANNELS,
    load_streams,
    replicate_by_token,
)
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["hc_collapse", "hc_collapse_kernel"]

_MAX_STREAMS = 8


@nki.jit
def hc_collapse_kernel(streams_hbm: Any, pre_hbm: Any, fold: int) -> Any:
    """streams [T, m, d] bf16, pre [T, m] fp32 -> x [T, d] bf16."""
    num_tokens, m, channels = streams_hbm.shape
    width = channels // fold
    x_hbm = nl.ndarray((num_tokens, channels), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    x_rows = x_hbm.reshape((num_tokens * fold, width))
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    tile_tokens = PARTITIONS // fold
    for token in range(first_token, end_token, tile_tokens):
        tokens = min(tile_tokens, end_token - token)
        rows, row = tokens * fold, token * fold
        pre_sb = replicate_by_token(pre_hbm, token, tokens, fold)
        for column in range(0, width, CHUNK_CHANNELS):
            columns = min(CHUNK_CHANNELS, width - column)
            streams_sb = load_streams(streams_hbm, fold, (token, tokens, column, columns))
            sum_sb = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
            x_sb = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_scalar(
                dst=sum_sb if m > 1 else x_sb,
                data=streams_sb[:, 0, :],
                op0=nl.multiply,
                operand0=pre_sb[:, 0:1],
            )
            for j in range(1, m):
                nisa.scalar_tensor_tensor(
                    dst=sum_sb if j < m - 1 else x_sb,
                    data=streams_sb[:, j, :],
                    op0=nl.multiply,
                    operand0=pre_sb[:, j : j + 1],
                    op1=nl.add,
                    operand1=sum_sb,
                )
            nisa.dma_copy(dst=x_rows[row : row + rows, column : column + columns], src=x_sb)
    return x_hbm


def hc_collapse(streams: torch.Tensor, pre: torch.Tensor, *, numerics: Numerics) -> torch.Tensor:
    """x [T, d] bf16 of streams [T, m, d] bf16 and pre [T, m] fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or m > 8.
        UsageError: shapes that do not meet.
    """
    op = "hc_collapse"
    require_trn2(op, numerics)
    require_dtype(op, "streams", streams, torch.bfloat16)
    require_dtype(op, "pre", pre, torch.float32)
    require(streams.ndim == 3, op, "streams must be [T, m, d]")
    num_tokens, m, channels = streams.shape
    require_shape(op, "pre", pre, (num_tokens, m))
    require_limit(op, "m", m, _MAX_STREAMS)
    if streams.numel() == 0:
        return streams.new_zeros((num_tokens, channels))
    fold = largest_fold(channels, PARTITIONS // min(num_tokens, PARTITIONS), MIN_FOLDED_CHANNELS)
    return launch(hc_collapse_kernel, streams, pre, fold)
