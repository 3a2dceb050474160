"""Sparse MLA attention: each token attends to its own selected latent rows, with a sink.

o = sum_t P_t k_t / (sum_t P_t + exp(sink - m)),  P_t = exp(s_t - m),  s_t = scale * q . k_t;
K and V are the same latent row; index -1 is no key; a token without keys gives 0.

Dimensions:
    T tokens, any number (decode rows and prefill rows alike); H heads on this rank, 1..128;
    D latent width, a multiple of 32, <= 512 with a divisor that cuts it into equal pieces of at
    most 128; M selected entries a token, <= 2048; n cache rows, <= 2^24 (indices pass fp32).

Layouts: q, o [T, H, D] bf16; kv [n, D] bf16; indices int32 [T, M]; sink [H, 1] fp32. Row-major.
Accumulation: scores and o in fp32 PSUM; softmax in fp32; P rounded to bf16 for P.V but not in the
denominator; one rounding of o. m includes the sink and ends at -1e30, so that absent keys (score
-3e38) weigh exactly 0 whatever else is masked.
Expected error: bf16 rounding of P and o, fp32 summation.

Tiling (LNC=2: each core takes half of the tokens; one token: half of the heads):
    G tokens at a time, G * H <= 128 softmax rows (t, h): one head a rank still fills the lanes
        q -> PE transpose -> q^T [D', D/D', G, G*H], zero outside each token's own columns
        for each token, for 128 of its entries:
            swdge gather of the rows [128, D]; PE transpose -> k^T [D', D/D', 128]
            D/D' matmuls into scores PSUM [G*H, M]; other tokens' columns of q^T add exact zeros
        VectorE: scores * scale + mask; row max; ScalarE: exp with fused row sum
        for 128 entries: PE transpose of P -> [128, G*H]; VectorE spreads it to [128, G, G*H]
            for each token: one matmul, P^T stationary, its gathered rows moving -> o PSUM [G*H, D]
        VectorE: o / denominator -> bf16 -> HBM
G is also limited so that the gathered rows of G tokens stay in SBUF (64 KiB a partition).

Refuses: numerics other than trn2's, q or kv that are not bf16, sizes beyond the limits above.
Row 0 of kv stands in for absent keys and must be finite, as every selected row.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.errors import KernelError
from harness.core.numerics import Numerics
from kernels.contract import (
    require,
    require_dtype,
    require_ids,
    require_limit,
    require_shape,
    require_trn2,
)
from kernels.launch import launch, nisa, nki, nl
from kernels.sparse_attention_tiles import (
    absence_mask,
    channel_piece,
    gather_indices,
    keys_by_channel,
    load_queries,
    owner_columns,
)
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, ceil_div, core_share

__all__ = ["sparse_attention", "sparse_attention_kernel", "tokens_per_group"]

_MAX_ENTRIES = 2048
_MAX_CACHE_ROWS = 1 << 24
_MAX_GROUP_TOKENS = 32
_GATHERED_BYTES = 64 * 1024
_SCORE_FLOOR = -1e30
_TINY = 1e-30


def tokens_per_group(num_tokens: int, num_heads: int, head_dim: int, num_entries: int) -> int:
    """G: how many tokens share one softmax tile and keep their gathered rows in SBUF."""
    per_token = ceil_div(num_entries, PARTITIONS) * head_dim * 2
    return max(
        1,
        min(
            num_tokens,
            PARTITIONS // num_heads,
            _GATHERED_BYTES // per_token,
            _MAX_GROUP_TOKENS,
        ),
    )


def _scores(qt_sb: Any, gathered_sb: Any, tokens: int, rows: int, entries: int) -> Any:
    """PSUM tiles [rows, <= 512] of q . k for the entries of every token of the group."""
    piece, pieces = qt_sb.shape[0], qt_sb.shape[1]
    height, tiles, head_dim = gathered_sb.shape[0], gathered_sb.shape[2], gathered_sb.shape[3]
    banks = []
    for begin in range(0, entries, PSUM_BANK_FP32):
        width = min(PSUM_BANK_FP32, entries - begin)
        banks.append(nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum))
    # Transposes of several tiles share one PSUM bank (1024 bf16 a partition) and one copy.
    batch = max(1, 1024 // (pieces * height))
    flat_sb = gathered_sb.reshape((height, gathered_sb.shape[1] * tiles, head_dim))
    for first in range(0, tokens * tiles, batch):
        count = min(batch, tokens * tiles - first)
        kt_sb = keys_by_channel(flat_sb[:, first : first + count, :], piece)
        for k in range(count):
            token, tile = (first + k) // tiles, (first + k) % tiles
            begin = tile * PARTITIONS
            width = min(height, entries - begin)
            column = begin % PSUM_BANK_FP32
            for i in range(pieces):
                nisa.nc_matmul(
                    dst=banks[begin // PSUM_BANK_FP32][:, column : column + width],
                    stationary=qt_sb[:, i, token, 0:rows],
                    moving=kt_sb[:, i, k, 0:width],
                    accumulate=token + i > 0,
                )
    return banks


def _softmax(banks: Any, mask_sb: Any, sink_sb: Any, scale: float) -> Any:
    """(P bf16 [rows, M], 1 / denominator fp32 [rows, 1])."""
    rows, entries = mask_sb.shape
    scores_sb = nl.ndarray((rows, entries), dtype=nl.float32, buffer=nl.sbuf)
    for bank in range(len(banks)):
        begin = bank * PSUM_BANK_FP32
        end = min(begin + PSUM_BANK_FP32, entries)
        nisa.scalar_tensor_tensor(
            dst=scores_sb[:, begin:end],
            data=banks[bank],
            op0=nl.multiply,
            operand0=scale,
            op1=nl.add,
            operand1=mask_sb[:, begin:end],
        )
    shift_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=shift_sb, op=nl.maximum, data=scores_sb, axis=1)
    nisa.tensor_tensor(dst=shift_sb, data1=shift_sb, data2=sink_sb, op=nl.maximum)
    nisa.tensor_scalar(
        dst=shift_sb,
        data=shift_sb,
        op0=nl.maximum,
        operand0=_SCORE_FLOOR,
        op1=nl.multiply,
        operand1=-1.0,
    )
    weight_sb = nl.ndarray((rows, entries), dtype=nl.bfloat16, buffer=nl.sbuf)
    total_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    sink_weight_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation_reduce(
        dst=weight_sb,
        op=nl.exp,
        data=scores_sb,
        bias=shift_sb,
        reduce_op=nl.add,
        reduce_res=total_sb,
    )
    nisa.activation(dst=sink_weight_sb, op=nl.exp, data=sink_sb, bias=shift_sb)
    # Zero only where a token has no key and its sink is -inf; then 0 / tiny is the wanted 0.
    nisa.tensor_scalar(
        dst=total_sb,
        data=total_sb,
        op0=nl.add,
        operand0=sink_weight_sb,
        op1=nl.maximum,
        operand1=_TINY,
    )
    nisa.reciprocal(dst=total_sb, data=total_sb)
    return weight_sb, total_sb


def _weighted_rows(weight_sb: Any, gathered_sb: Any, owner_sb: Any, tokens: int) -> Any:
    """PSUM fp32 [rows, D]: P times each token's own gathered rows."""
    rows, entries = weight_sb.shape
    height, tiles, head_dim = gathered_sb.shape[0], gathered_sb.shape[2], gathered_sb.shape[3]
    o_psum = nl.ndarray((rows, head_dim), dtype=nl.float32, buffer=nl.psum)
    for tile in range(tiles):
        begin = tile * PARTITIONS
        width = min(height, entries - begin)
        t_psum = nl.ndarray((width, rows), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(
            dst=t_psum, data=weight_sb[:, begin : begin + width], engine=nisa.engine.tensor
        )
        spread_sb = nl.ndarray((width, tokens, rows), dtype=nl.bfloat16, buffer=nl.sbuf)
        if tokens > 1:
            nisa.tensor_tensor(
                dst=spread_sb,
                data1=t_psum.expand_dim(1).broadcast(1, tokens),
                data2=owner_sb[0:width, 0:tokens, 0:rows],
                op=nl.multiply,
            )
        else:
            nisa.tensor_copy(dst=spread_sb[:, 0, :], src=t_psum)
        for token in range(tokens):
            nisa.nc_matmul(
                dst=o_psum,
                stationary=spread_sb[:, token, :],
                moving=gathered_sb[0:width, token, tile, :],
                accumulate=tile + token > 0,
            )
    return o_psum


@nki.jit
def sparse_attention_kernel(
    q_hbm: Any, kv_hbm: Any, indices_hbm: Any, sink_hbm: Any, scale: float, group_tokens: int
) -> Any:
    """q [T, H, D] bf16, kv [n, D] bf16, indices [T, M] int32, sink [H, 1] -> o [T, H, D] bf16."""
    num_tokens, num_heads, head_dim = q_hbm.shape
    entries = indices_hbm.shape[1]
    o_hbm = nl.ndarray((num_tokens, num_heads, head_dim), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    q_rows = q_hbm.reshape((num_tokens * num_heads, head_dim))
    o_rows = o_hbm.reshape((num_tokens * num_heads, head_dim))
    first_token, my_tokens = 0, num_tokens
    first_head, heads = 0, num_heads
    if num_tokens > 1:
        first_token, my_tokens = core_share(num_tokens)
    else:
        first_head, heads = core_share(num_heads)
        if heads == 0:
            return o_hbm
    group = min(group_tokens, max(1, my_tokens))
    piece = channel_piece(head_dim)
    height = min(entries, PARTITIONS)
    tiles = ceil_div(entries, PARTITIONS)

    qt_sb = nl.ndarray(
        (piece, head_dim // piece, group, group * heads), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    if group > 1:
        nisa.memset(dst=qt_sb, value=0.0)
    owner_sb = owner_columns(group, heads)
    sink_sb = nl.ndarray((group * heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=sink_sb, src=sink_hbm.ap(pattern=[[0, group], [1, heads], [1, 1]], offset=first_head)
    )
    for token in range(first_token, first_token + my_tokens, group):
        tokens = min(group, first_token + my_tokens - token)
        rows = tokens * heads
        row = token * num_heads + first_head
        load_queries(q_rows, row, tokens, heads, qt_sb)
        index_sb = gather_indices(indices_hbm, token, tokens)
        gathered_sb = nl.ndarray(
            (height, tokens, tiles, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf
        )
        for t in range(tokens):
            for tile in range(tiles):
                nisa.dma_copy(
                    dst=gathered_sb[:, t, tile, :],
                    src=kv_hbm.ap(
                        pattern=[[head_dim, height], [1, head_dim]],
                        vector_offset=index_sb[:, t, tile : tile + 1],
                        indirect_dim=0,
                    ),
                )
        mask_sb = absence_mask(indices_hbm, token, tokens, heads)
        banks = _scores(qt_sb, gathered_sb, tokens, rows, entries)
        weight_sb, inverse_sb = _softmax(banks, mask_sb, sink_sb[0:rows, :], scale)
        o_psum = _weighted_rows(weight_sb, gathered_sb, owner_sb, tokens)
        o_sb = nl.ndarray((rows, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=o_sb, data=o_psum, op0=nl.multiply, operand0=inverse_sb)
        nisa.dma_copy(dst=o_rows[row : row + rows, :], src=o_sb)
    return o_hbm


def sparse_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """o [T, H, D] bf16 of q [T, H, D] bf16 over rows indices [T, M] of kv [n, D] bf16.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or size.
        UsageError: shapes that do not meet, an index outside -1..n-1.
    """
    op = "sparse_attention"
    require_trn2(op, numerics)
    require_dtype(op, "q", q, torch.bfloat16)
    require_dtype(op, "kv", kv, torch.bfloat16)
    require_dtype(op, "sink", sink, torch.float32, torch.bfloat16)
    require(q.ndim == 3 and kv.ndim == 2, op, "q must be [T, H, D] and kv [n, D]")
    num_tokens, num_heads, head_dim = q.shape
    num_rows = kv.shape[0]
    require_shape(op, "kv", kv, (num_rows, head_dim))
    require_shape(op, "sink", sink, (num_heads,))
    require(indices.ndim == 2, op, "indices must be [T, M]")
    require_ids(op, "indices", indices, (num_tokens, indices.shape[1]))
    require_limit(op, "H", num_heads, PARTITIONS)
    require_limit(op, "D", head_dim, PSUM_BANK_FP32)
    require_limit(op, "M", indices.shape[1], _MAX_ENTRIES)
    require_limit(op, "n", num_rows, _MAX_CACHE_ROWS)
    if channel_piece(head_dim) * 4 < head_dim:
        raise KernelError("UNSUPPORTED", f"{op}: D is {head_dim}, cut it into <= 4 equal pieces")
    if q.numel() == 0:
        return q.new_empty(q.shape)
    low, high = (int(bound) for bound in indices.aminmax()) if indices.numel() else (-1, -1)
    require(
        low >= -1 and high < num_rows,
        op,
        f"indices reach from {low} to {high}, kv has {num_rows} rows",
    )
    # An absent key needs a row to stand in for it, and a row of no entries an absent one.
    if num_rows == 0:
        kv = kv.new_zeros((1, head_dim))
    if indices.shape[1] == 0:
        indices = indices.new_full((num_tokens, 1), -1)
    return launch(
        sparse_attention_kernel,
        q,
        kv,
        indices.to(torch.int32),
        sink.float().unsqueeze(1),
        float(scale),
        tokens_per_group(num_tokens, num_heads, head_dim, indices.shape[1]),
    )
