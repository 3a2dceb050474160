"""Sparse MLA attention: each token attends to its own selected latent rows, with a sink.

o = sum_t P_t k_t / (sum_t P_t + exp(sink - m)),  P_t = exp(s_t - m),  s_t = scale * q . k_t;
K and V are the same latent row; index -1 is no key; a token without keys gives 0.

Dimensions:
    T tokens, any number (decode rows and prefill rows alike); H heads on this rank, 1..128;
    D latent width, a multiple of 32, <= 512 with a divisor that cuts it into equal pieces of at
    most 128; M selected entries a token, <= 2048; n cache rows, <= 2^24 (indices pass fp32).

Layouts: q, o [T, H, D] bf16; kv [n, D] bf16; indices int32 [T, M]; sink [H, 1] fp32. Row-major.
Accumulation: scores and o in fp32 PSUM; softmax in fp32; P rounded to bf16 for P.V but not in the
denominator; one rounding of o. m is the maximum over keys and ends at -1e30, so that absent keys
(score -3e38) weigh exactly 0 whatever else is masked; sink - m is cut at 80, where exp is finite.
Expected error: bf16 rounding of P and o, fp32 summation.

Tiling (LNC=2: each core takes half of the tokens):
    G tokens at a time, G * H <= 128 softmax rows (t, h): one head a rank still fills the lanes
        q -> PE transpose -> q^T [D', D/D', G, G*H], zero outside each token's own columns
        for each token, for 128 of its entries:
            swdge gather of the rows [128, D]; PE transpose -> k^T [D', D/D', 128], copied out of
            PSUM by ScalarE (two of three) and VectorE
            D/D' matmuls into scores PSUM [G*H, M]; other tokens' columns of q^T add exact zeros
        VectorE: scores * scale + mask; row max; ScalarE: exp with fused row sum
        for 128 entries: PE transpose of P -> [128, G*H]; VectorE spreads it to [128, G, G*H]
            for each token: one matmul, P^T stationary, its gathered rows moving -> o PSUM [G*H, D]
        VectorE: o / denominator -> bf16 -> HBM
G is also limited so that the gathered rows of G tokens stay in SBUF (64 KiB a partition).

One token at LNC=2: each core takes half of the entries and leaves (o, sum, -m) in shared HBM; after
a barrier each joins half of the heads, both parts rescaled to the common maximum. So one head a
rank is shared by both cores, too, and no row is gathered twice.

Each token gathers its own rows here: right for decode, where tokens are of different requests.
Prompt tokens share nearly all of theirs: the prefill tile that loads a row once for its neighbours
is a kernel of its own, prefill_attention_nki.py.

Refuses: numerics other than trn2's, q or kv that are not bf16, sizes beyond the limits above.
Row 0 of kv stands in for absent keys and must be finite, as every selected row.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.attention_contract import require_attention
from kernels.attention_halves import join_halves, leave_half
from kernels.contract import require, require_ids, require_limit, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.sparse_attention_softmax import (
    exponentials,
    inverse_denominator,
    scores,
    weighted_rows,
)
from kernels.sparse_attention_tiles import (
    absence_mask,
    channel_piece,
    gather_indices,
    gather_rows,
    load_queries,
    owner_columns,
)
from kernels.tiling import PARTITIONS, ceil_div, core_share

__all__ = ["sparse_attention", "sparse_attention_kernel", "tokens_per_group"]

_MAX_ENTRIES = 2048
_MAX_GROUP_TOKENS = 32
_GATHERED_BYTES = 64 * 1024


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


def _sink_rows(sink_hbm: Any, tokens: int, heads: int) -> Any:
    """fp32 [tokens * heads, 1] of sink [H, 1]."""
    sink_sb = nl.ndarray((tokens * heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=sink_sb, src=sink_hbm.ap(pattern=[[0, tokens], [1, heads], [1, 1]]))
    return sink_sb


def _attend_tokens(
    q_hbm: Any, kv_hbm: Any, indices_hbm: Any, sink_hbm: Any, o_hbm: Any, scale: float, group: int
) -> None:
    """This core's tokens, `group` at a time."""
    num_tokens, heads, head_dim = q_hbm.shape
    q_rows = q_hbm.reshape((num_tokens * heads, head_dim))
    o_rows = o_hbm.reshape((num_tokens * heads, head_dim))
    span = (0, indices_hbm.shape[1])
    first_token, my_tokens = core_share(num_tokens)
    group = min(group, max(1, my_tokens))
    piece = channel_piece(head_dim)
    qt_sb = nl.ndarray(
        (piece, head_dim // piece, group, group * heads), dtype=nl.bfloat16, buffer=nl.sbuf
    )
    if group > 1:
        nisa.memset(dst=qt_sb, value=0.0)
    owner_sb = owner_columns(group, heads)
    sink_sb = _sink_rows(sink_hbm, group, heads)
    for token in range(first_token, first_token + my_tokens, group):
        tokens = min(group, first_token + my_tokens - token)
        rows = tokens * heads
        row = token * heads
        load_queries(q_rows, row, tokens, heads, qt_sb)
        gathered_sb = gather_rows(kv_hbm, gather_indices(indices_hbm, token, tokens, span))
        mask_sb = absence_mask(indices_hbm, token, tokens, heads, span)
        banks = scores(qt_sb, gathered_sb, tokens, rows, span[1])
        sinks = sink_sb[0:rows, :]
        weight_sb, total_sb, shift_sb = exponentials(banks, mask_sb, scale)
        inverse_denominator(total_sb, sinks, shift_sb)
        o_psum = weighted_rows(weight_sb, gathered_sb, owner_sb, tokens)
        o_sb = nl.ndarray((rows, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=o_sb, data=o_psum, op0=nl.multiply, operand0=total_sb)
        nisa.dma_copy(dst=o_rows[row : row + rows, :], src=o_sb)


def _half_of_entries(entries: int) -> Any:
    """(first, number) of this core's entries: whole gather tiles where there are two or more."""
    if entries < 2 * PARTITIONS:
        return core_share(entries)
    first_tile, tiles = core_share(ceil_div(entries, PARTITIONS))
    first = first_tile * PARTITIONS
    return first, min(tiles * PARTITIONS, entries - first)


def _attend_half(q_hbm: Any, kv_hbm: Any, indices_hbm: Any, part_hbm: Any, scale: float) -> None:
    """One token: this core's half of the entries -> part [core, H, D + 2]: o, sum, -m."""
    heads, head_dim = q_hbm.shape[1], q_hbm.shape[2]
    span = _half_of_entries(indices_hbm.shape[1])
    piece = channel_piece(head_dim)
    qt_sb = nl.ndarray((piece, head_dim // piece, 1, heads), dtype=nl.bfloat16, buffer=nl.sbuf)
    load_queries(q_hbm.reshape((heads, head_dim)), 0, 1, heads, qt_sb)
    gathered_sb = gather_rows(kv_hbm, gather_indices(indices_hbm, 0, 1, span))
    mask_sb = absence_mask(indices_hbm, 0, 1, heads, span)
    banks = scores(qt_sb, gathered_sb, 1, heads, span[1])
    weight_sb, total_sb, shift_sb = exponentials(banks, mask_sb, scale)
    o_psum = weighted_rows(weight_sb, gathered_sb, None, 1)
    leave_half(part_hbm, o_psum, total_sb, shift_sb)


@nki.jit
def sparse_attention_kernel(
    q_hbm: Any, kv_hbm: Any, indices_hbm: Any, sink_hbm: Any, scale: float, group_tokens: int
) -> Any:
    """q [T, H, D] bf16, kv [n, D] bf16, indices [T, M] int32, sink [H, 1] -> o [T, H, D] bf16."""
    num_tokens, heads, head_dim = q_hbm.shape
    o_hbm = nl.ndarray((num_tokens, heads, head_dim), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    if num_tokens == 1 and nl.program_ndim() > 0 and indices_hbm.shape[1] > 1:
        part_hbm = nl.ndarray((2, heads, head_dim + 2), dtype=nl.float32, buffer=nl.shared_hbm)
        _attend_half(q_hbm, kv_hbm, indices_hbm, part_hbm, scale)
        nisa.core_barrier(data=part_hbm, cores=(0, 1))
        join_halves(part_hbm, sink_hbm, o_hbm.reshape((heads, head_dim)))
    else:
        _attend_tokens(q_hbm, kv_hbm, indices_hbm, sink_hbm, o_hbm, scale, group_tokens)
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
    require_attention(op, q, "kv", kv, sink)
    num_tokens, num_heads, head_dim = q.shape
    num_rows = kv.shape[0]
    require(indices.ndim == 2, op, "indices must be [T, M]")
    require_ids(op, "indices", indices, (num_tokens, indices.shape[1]))
    require_limit(op, "M", indices.shape[1], _MAX_ENTRIES)
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
