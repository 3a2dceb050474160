"""Hyper-connections, a sublayer's output back into the streams:
out_k = post_k * y + sum over j of comb[j, k] * streams_j.

Dimensions:
    T tokens, any number; m streams, 1..8; d channels, any.

Layouts: y [T, d], streams and out [T, m, d] bf16 row-major; post [T, m], comb [T, m*m]
(source-major) fp32.
Accumulation: fp32, one rounding to bf16.
Expected error: within the fp32 baseline.

Tiling (LNC=2: each core takes half of the tokens):
    fold = largest c with 64c | d and T * c <= 128: few tokens lie on c partitions each
    for 128 folded rows, for <= 2048 channels: y and all m streams -> SBUF
        for each k: ScalarE y * post_k; VectorE m times (streams_j * comb_jk) + sum; one DMA out

Refuses: numerics other than trn2's, y or streams that are not bf16, coefficients that are not
fp32, m > 8.
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
    streams_view,
)
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["hc_expand", "hc_expand_kernel"]

_MAX_STREAMS = 8


@nki.jit
def hc_expand_kernel(y_hbm: Any, streams_hbm: Any, post_hbm: Any, comb_hbm: Any, fold: int) -> Any:
    """y [T, d], streams [T, m, d] bf16, post [T, m], comb [T, m*m] fp32 -> out [T, m, d] bf16."""
    num_tokens, m, channels = streams_hbm.shape
    width = channels // fold
    out_hbm = nl.ndarray((num_tokens, m, channels), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    y_rows = y_hbm.reshape((num_tokens * fold, width))
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    tile_tokens = PARTITIONS // fold
    for token in range(first_token, end_token, tile_tokens):
        tokens = min(tile_tokens, end_token - token)
        rows, row = tokens * fold, token * fold
        post_sb = replicate_by_token(post_hbm, token, tokens, fold)
        comb_sb = replicate_by_token(comb_hbm, token, tokens, fold)
        for column in range(0, width, CHUNK_CHANNELS):
            columns = min(CHUNK_CHANNELS, width - column)
            place = (token, tokens, column, columns)
            streams_sb = load_streams(streams_hbm, fold, place)
            y_sb = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            out_sb = nl.ndarray((rows, m, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=y_sb, src=y_rows[row : row + rows, column : column + columns])
            for k in range(m):
                sum_sb = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=sum_sb, op=nl.copy, data=y_sb, scale=post_sb[:, k : k + 1])
                for j in range(m):
                    nisa.scalar_tensor_tensor(
                        dst=sum_sb if j < m - 1 else out_sb[:, k, :],
                        data=streams_sb[:, j, :],
                        op0=nl.multiply,
                        operand0=comb_sb[:, j * m + k : j * m + k + 1],
                        op1=nl.add,
                        operand1=sum_sb,
                    )
            nisa.dma_copy(dst=streams_view(out_hbm, fold, place), src=out_sb)
    return out_hbm


def hc_expand(
    y: torch.Tensor,
    streams: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """out [T, m, d] bf16 of y [T, d], streams [T, m, d] bf16, post [T, m], comb [T, m, m] fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or m > 8.
        UsageError: shapes that do not meet.
    """
    op = "hc_expand"
    require_trn2(op, numerics)
    require_dtype(op, "streams", streams, torch.bfloat16)
    require_dtype(op, "y", y, torch.bfloat16)
    require_dtype(op, "post", post, torch.float32)
    require_dtype(op, "comb", comb, torch.float32)
    require(streams.ndim == 3, op, "streams must be [T, m, d]")
    num_tokens, m, channels = streams.shape
    require_shape(op, "y", y, (num_tokens, channels))
    require_shape(op, "post", post, (num_tokens, m))
    require_shape(op, "comb", comb, (num_tokens, m, m))
    require_limit(op, "m", m, _MAX_STREAMS)
    if streams.numel() == 0:
        return streams.new_empty(streams.shape)
    fold = largest_fold(channels, PARTITIONS // min(num_tokens, PARTITIONS), MIN_FOLDED_CHANNELS)
    return launch(hc_expand_kernel, y, streams, post, comb.reshape(num_tokens, m * m), fold)
