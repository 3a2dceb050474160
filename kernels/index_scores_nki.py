"""Lightning-indexer scores: scores[t, j] = sum_h w[t, h] * relu(q[t, h] . k[j]).

Dimensions:
    T tokens, any number; h index heads, 1..128; x index head dim, <= 128; n keys, any number.

Layouts: q [T, h, x] bf16; keys [n, x] bf16; head_weights [T, h] fp32; scores [T, n] fp32.
Accumulation: q . k in fp32 PSUM (products of bf16 are exact); relu, weights and the head sum in
fp32; the head sum runs in the same order for every key, so equal keys score exactly alike.
Expected error: fp32 summation of x and h terms.

Tiling (LNC=2: each core takes half of the keys):
    for <= 128 tokens: rows (t, h) in groups of 128 // h tokens
        q -> PE transpose -> q^T [x, groups, rows]
        weights [rows, groups] -> W [rows, groups, tokens], zero outside a row's own token
        for 512 keys: PE transpose -> k^T [x, 512]
            for each group: matmul [rows, 512]; ScalarE relu -> SBUF fp32
                            matmul W^T relu, accumulated over groups -> PSUM [tokens, 512]
            PSUM -> HBM
The weights are the stationary operand of the head sum: a signed weight costs nothing, and every
token's scores end on its own partition, so that one copy stores 128 tokens.

Refuses: numerics other than trn2's, q or keys that are not bf16, h or x above 128.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, ceil_div, core_share

__all__ = ["index_scores", "index_scores_kernel"]

_KEY_UNIT = 32


def _transposed_rows(source_rows: Any, first: int, count: int, tile_rows: int) -> Any:
    """bf16 [x, tiles, tile_rows] of rows first..first+count of an HBM tensor [rows, x].

    The last tile may be partly filled; its rest is zero.
    """
    width = source_rows.shape[1]
    tiles = ceil_div(count, tile_rows)
    full, tail = count // tile_rows, count % tile_rows
    rows_sb = nl.ndarray((tile_rows, tiles, width), dtype=nl.bfloat16, buffer=nl.sbuf)
    if tail > 0:
        nisa.memset(dst=rows_sb[:, full:tiles, :], value=0.0)
    nisa.dma_copy(
        dst=rows_sb[:, 0:full, :],
        src=source_rows.ap(
            pattern=[[width, tile_rows], [width * tile_rows, full], [1, width]],
            offset=first * width,
        ),
    )
    if tail > 0:
        begin = first + full * tile_rows
        nisa.dma_copy(dst=rows_sb[0:tail, full, :], src=source_rows[begin : begin + tail, :])
    columns_sb = nl.ndarray((width, tiles, tile_rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    per_bank = max(1, 1024 // tile_rows)
    for tile in range(0, tiles, per_bank):
        here = min(per_bank, tiles - tile)
        t_psum = nl.ndarray((width, here, tile_rows), dtype=nl.bfloat16, buffer=nl.psum)
        for i in range(here):
            nisa.nc_transpose(
                dst=t_psum[:, i, :], data=rows_sb[:, tile + i, :], engine=nisa.engine.tensor
            )
        nisa.tensor_copy(dst=columns_sb[:, tile : tile + here, :], src=t_psum)
    return columns_sb


def _spread_weights(weights_flat: Any, token: int, tokens: int, heads: int, rows: int) -> Any:
    """fp32 [rows, groups, tokens]: the weight of row (t, h) in column t, zero elsewhere."""
    count = tokens * heads
    groups = ceil_div(count, rows)
    full, tail = count // rows, count % rows
    flat_sb = nl.ndarray((rows, groups), dtype=nl.float32, buffer=nl.sbuf)
    if tail > 0:
        nisa.memset(dst=flat_sb[:, full:groups], value=0.0)
        begin = token * heads + full * rows
        nisa.dma_copy(dst=flat_sb[0:tail, full:groups], src=weights_flat[begin : begin + tail, :])
    nisa.dma_copy(
        dst=flat_sb[:, 0:full],
        src=weights_flat.ap(pattern=[[1, rows], [rows, full]], offset=token * heads),
    )
    if tokens == 1:
        return flat_sb.expand_dim(2)
    spread_sb = nl.ndarray((rows, groups, tokens), dtype=nl.float32, buffer=nl.sbuf)
    # Row p of group g is (token, head) number g * rows + p; keep 0 <= number - t * heads < heads.
    nisa.affine_select(
        dst=spread_sb,
        pattern=[[rows, groups], [-heads, tokens]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=flat_sb.expand_dim(2).broadcast(2, tokens),
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )
    nisa.affine_select(
        dst=spread_sb,
        pattern=[[rows, groups], [-heads, tokens]],
        offset=-heads,
        channel_multiplier=1,
        on_true_tile=spread_sb,
        on_false_value=0.0,
        cmp_op=nl.less,
    )
    return spread_sb


@nki.jit
def index_scores_kernel(q_hbm: Any, keys_hbm: Any, weights_hbm: Any) -> Any:
    """q [T, h, x] bf16, keys [n, x] bf16, weights [T, h] fp32 -> scores [T, n] fp32."""
    num_tokens, heads, width = q_hbm.shape
    num_keys = keys_hbm.shape[0]
    scores_hbm = nl.ndarray((num_tokens, num_keys), dtype=nl.float32, buffer=nl.shared_hbm)
    q_rows = q_hbm.reshape((num_tokens * heads, width))
    weights_flat = weights_hbm.reshape((num_tokens * heads, 1))
    first_unit, num_units = core_share(ceil_div(num_keys, _KEY_UNIT))
    first_key = first_unit * _KEY_UNIT
    end_key = min(num_keys, (first_unit + num_units) * _KEY_UNIT)
    for token in range(0, num_tokens, PARTITIONS):
        tokens = min(PARTITIONS, num_tokens - token)
        rows = min(tokens, PARTITIONS // heads) * heads
        qt_sb = _transposed_rows(q_rows, token * heads, tokens * heads, rows)
        spread_sb = _spread_weights(weights_flat, token, tokens, heads, rows)
        for key in range(first_key, end_key, PSUM_BANK_FP32):
            keys = min(PSUM_BANK_FP32, end_key - key)
            tile_rows = min(keys, PARTITIONS)
            kt_sb = _transposed_rows(keys_hbm, key, keys, tile_rows)
            padded = kt_sb.shape[1] * tile_rows
            kt_flat = kt_sb.reshape((width, padded))[:, 0:keys]
            scores_psum = nl.ndarray((tokens, keys), dtype=nl.float32, buffer=nl.psum)
            for group in range(qt_sb.shape[1]):
                dot_psum = nl.ndarray((rows, keys), dtype=nl.float32, buffer=nl.psum)
                dot_sb = nl.ndarray((rows, keys), dtype=nl.float32, buffer=nl.sbuf)
                nisa.nc_matmul(
                    dst=dot_psum, stationary=qt_sb[:, group, :], moving=kt_flat, accumulate=False
                )
                nisa.activation(dst=dot_sb, op=nl.relu, data=dot_psum)
                nisa.nc_matmul(
                    dst=scores_psum,
                    stationary=spread_sb[:, group, :],
                    moving=dot_sb,
                    accumulate=group > 0,
                )
            scores_sb = nl.ndarray((tokens, keys), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=scores_sb, src=scores_psum)
            nisa.dma_copy(dst=scores_hbm[token : token + tokens, key : key + keys], src=scores_sb)
    return scores_hbm


def index_scores(
    q: torch.Tensor, keys: torch.Tensor, head_weights: torch.Tensor, *, numerics: Numerics
) -> torch.Tensor:
    """scores [T, n] fp32 of q [T, h, x] bf16, keys [n, x] bf16, head_weights [T, h] fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype, h or x above 128.
        UsageError: shapes that do not meet.
    """
    op = "index_scores"
    require_trn2(op, numerics)
    require_dtype(op, "q", q, torch.bfloat16)
    require_dtype(op, "keys", keys, torch.bfloat16)
    require_dtype(op, "head_weights", head_weights, torch.float32)
    require(q.ndim == 3 and keys.ndim == 2, op, "q must be [T, h, x] and keys [n, x]")
    num_tokens, num_heads, width = q.shape
    require_shape(op, "keys", keys, (keys.shape[0], width))
    require_shape(op, "head_weights", head_weights, (num_tokens, num_heads))
    require_limit(op, "h", num_heads, PARTITIONS)
    require_limit(op, "x", width, PARTITIONS)
    if num_tokens == 0 or keys.shape[0] == 0:
        return q.new_empty((num_tokens, keys.shape[0]), dtype=torch.float32)
    return launch(index_scores_kernel, q, keys, head_weights)
