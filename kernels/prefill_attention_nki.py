"""Prefill attention: neighbouring prompt tokens share the rows they attend to, under a mask.

o = sum_k P_k r_k / (sum_k P_k + exp(sink - m)),  P_k = exp(s_k - m),  s_k = scale * q . r_k, over
the rows k that a token is allowed; K and V are the same latent row; a token that is allowed none
gives 0. It is sparse_attention's prefill tile: there each token gathers its own rows, here a row is
loaded and transposed once for up to 1024 softmax rows (token, head).

Dimensions:
    T tokens, any number; H heads on this rank, 1..128; D latent width, <= 512 with a divisor that
    cuts it into equal pieces of at most 128; N rows (window and compressed entries of a prompt),
    <= 2^24; scale within 2^-13..2^6.

Layouts: q, o [T, H, D] bf16; rows [N, D] bf16; allowed [B, V, tokens, K] bytes and starts int32
[1, B * V], cut by prefill_schedule.py; sink [tokens of a tile * H, 1] fp32. Row-major.
Accumulation: scores and P.V in fp32 PSUM; maximum, sum and o across key blocks in fp32 SBUF; P
rounded to bf16 for P.V but not in the denominator; one rounding of o. m starts at -1e30, so that
masked scores (-1e36) weigh exactly 0; sink - m is cut at 80, where exp is finite.
Expected error: bf16 rounding of P (about the maximum so far) and of o, fp32 summation.

Tiling (LNC=2: each core takes half of the query blocks; where all softmax rows fit one tile, as 128
tokens at one head a rank do, both share its keys instead and join their halves behind a barrier):
    for each query block: I <= 8 tiles of G tokens, G * H <= 128, <= 128 tokens
        q -> PE transpose -> q^T [D', D/D', G * H] for each tile; o = 0, sum = 0, m = -1e30
        for each of its V visits, K <= 512 keys, only blocks with an allowed entry (starts: data)
            DMA rows [P, J, D], 4 KiB a descriptor at D = 512; PE transpose -> k^T [D', D/D', K]
            DMA the mask bytes; GpSimd: 0 or -1e36 -> bias [tokens, K] bf16
            for each tile:
                D/D' matmuls -> scores PSUM [G * H, K]; one more adds the bias: its stationary
                operand is 1 where a softmax row belongs to a token, so PE spreads it over heads
                VectorE: row max, new m; ScalarE: exp(old m - m), P = exp(scale * s - m), row sum
                PE transpose of P, ScalarE copies; J matmuls P^T . rows -> PSUM [G * H, D]
                VectorE: o = o * exp(old m - m) + PSUM
        VectorE: o / (sum + exp(sink - m)) -> bf16 -> HBM
A visit's work for a tile is about 2 us of PE at D = 512 and K = 512, VectorE and ScalarE half of
that. Blocks that nobody of a query block sees are not visited: their number is shape, their places
are data, so a kernel serves every mask with as many visits (rounded up to a power of two).

Refuses: numerics other than trn2's, q or rows that are not bf16, sizes and scales beyond the
limits above. Every row of a block with an allowed entry must be finite.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.errors import KernelError
from harness.core.numerics import Numerics
from kernels.attention_contract import require_attention
from kernels.attention_halves import join_halves, leave_half
from kernels.contract import require_mask, require_trn2
from kernels.launch import active_lnc, launch, nisa, nki, nl
from kernels.prefill_attention_tiles import (
    load_visit,
    mask_bias,
    queries_by_channel,
    rows_by_channel,
    token_columns,
)
from kernels.prefill_schedule import cut_of, visits_of
from kernels.sparse_attention_softmax import inverse_denominator
from kernels.sparse_attention_tiles import channel_piece
from kernels.tiling import core_share

__all__ = ["prefill_attention", "prefill_attention_kernel"]

_MOST_NEGATIVE = -1e30
_SCALES = (2.0**-13, 2.0**6)


def _scores(qt_sb: Any, kt_sb: Any, owner: Any, bias_sb: Any) -> Any:
    """PSUM fp32 [rows, K]: q . k, far below any score where a token may not see the key."""
    s_psum = nl.ndarray((qt_sb.shape[2], kt_sb.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for i in range(qt_sb.shape[1]):
        nisa.nc_matmul(
            dst=s_psum, stationary=qt_sb[:, i, :], moving=kt_sb[:, i, :], accumulate=i > 0
        )
    nisa.nc_matmul(dst=s_psum, stationary=owner, moving=bias_sb, accumulate=True)
    return s_psum


def _weights(s_psum: Any, scale: float, shift: Any, total: Any) -> Any:
    """(P bf16 [rows, K], factor fp32 [rows, 1] for what was summed before).

    shift = -m and total, fp32 [rows, 1], are brought up to date in place.
    """
    rows, keys = s_psum.shape
    old_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    best_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    factor_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    sum_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    weight_sb = nl.ndarray((rows, keys), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=old_sb, src=shift)
    nisa.tensor_reduce(dst=best_sb, op=nl.maximum, data=s_psum, axis=1)
    nisa.tensor_scalar(
        dst=shift,
        data=best_sb,
        op0=nl.multiply,
        operand0=-scale,
        op1=nl.minimum,
        operand1=old_sb,
    )
    nisa.activation(dst=factor_sb, op=nl.exp, data=old_sb, scale=-1.0, bias=shift)
    nisa.activation_reduce(
        dst=weight_sb,
        op=nl.exp,
        data=s_psum,
        scale=scale,
        bias=shift,
        reduce_op=nl.add,
        reduce_res=sum_sb,
    )
    nisa.scalar_tensor_tensor(
        dst=total,
        data=total,
        op0=nl.multiply,
        operand0=factor_sb,
        op1=nl.add,
        operand1=sum_sb,
    )
    return weight_sb, factor_sb


def _add_weighted_rows(o: Any, factor_sb: Any, weight_sb: Any, rows_sb: Any) -> None:
    """o [rows, D] = o * factor + P [rows, K] . rows [P, J, D]."""
    rows = weight_sb.shape[0]
    partitions, per_partition, head_dim = rows_sb.shape
    t_psum = nl.ndarray((partitions, per_partition, rows), dtype=nl.bfloat16, buffer=nl.psum)
    t_sb = nl.ndarray((partitions, per_partition, rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    for j in range(per_partition):
        nisa.nc_transpose(
            dst=t_psum[:, j, :],
            data=weight_sb[:, j * partitions : (j + 1) * partitions],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(dst=t_sb, src=t_psum, engine=nisa.engine.scalar)
    o_psum = nl.ndarray((rows, head_dim), dtype=nl.float32, buffer=nl.psum)
    for j in range(per_partition):
        nisa.nc_matmul(
            dst=o_psum, stationary=t_sb[:, j, :], moving=rows_sb[:, j, :], accumulate=j > 0
        )
    nisa.scalar_tensor_tensor(
        dst=o, data=o, op0=nl.multiply, operand0=factor_sb, op1=nl.add, operand1=o_psum
    )


def _attend_block(
    q_hbm: Any,
    rows_hbm: Any,
    starts_sb: Any,
    allowed_hbm: Any,
    scale: float,
    cut: Any,
    block: int,
    visits: Any,
) -> Any:
    """(o [rows, tiles, D], sum, -m [rows, tiles], tokens of each tile) of a query block.

    cut = (tiles, partitions, rows a partition); visits = (first, number) of those to make.
    """
    num_tokens, heads, head_dim = q_hbm.shape
    tiles, partitions, per_partition = cut
    block_tokens = allowed_hbm.shape[2]
    tile_tokens = block_tokens // tiles
    first_token = block * block_tokens
    piece = channel_piece(head_dim)
    q_rows = q_hbm.reshape((num_tokens * heads, head_dim))
    owner_sb = token_columns(block_tokens, tiles, heads)
    o_sb = nl.ndarray((tile_tokens * heads, tiles, head_dim), dtype=nl.float32, buffer=nl.sbuf)
    total_sb = nl.ndarray((tile_tokens * heads, tiles), dtype=nl.float32, buffer=nl.sbuf)
    shift_sb = nl.ndarray((tile_tokens * heads, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=o_sb, value=0.0)
    nisa.memset(dst=total_sb, value=0.0)
    nisa.memset(dst=shift_sb, value=-_MOST_NEGATIVE)
    tokens = []
    queries = []
    for i in range(tiles):
        token = first_token + i * tile_tokens
        here = min(tile_tokens, max(0, num_tokens - token))
        tokens.append(here)
        if here > 0:
            queries.append(queries_by_channel(q_rows, token * heads, here * heads, piece))
    for v in range(visits[0], visits[0] + visits[1]):
        index = block * allowed_hbm.shape[1] + v
        rows_sb = load_visit(rows_hbm, starts_sb[0:1, index : index + 1], partitions, per_partition)
        kt_sb = rows_by_channel(rows_sb, piece)
        bias_sb = mask_bias(allowed_hbm[block, v, :, :])
        for i in range(len(queries)):
            rows = tokens[i] * heads
            s_psum = _scores(queries[i], kt_sb, owner_sb[:, i, 0:rows], bias_sb)
            weight_sb, factor_sb = _weights(
                s_psum, scale, shift_sb[0:rows, i : i + 1], total_sb[0:rows, i : i + 1]
            )
            _add_weighted_rows(o_sb[0:rows, i, :], factor_sb, weight_sb, rows_sb)
    return o_sb, total_sb, shift_sb, tokens


def _write_block(state: Any, sink_sb: Any, o_hbm: Any, first_token: int) -> None:
    """o of a query block, divided and rounded."""
    o_sb, total_sb, shift_sb, tokens = state
    num_tokens, heads, head_dim = o_hbm.shape
    o_rows = o_hbm.reshape((num_tokens * heads, head_dim))
    row = first_token * heads
    for i in range(len(tokens)):
        rows = tokens[i] * heads
        if rows > 0:
            total = total_sb[0:rows, i : i + 1]
            inverse_denominator(total, sink_sb[0:rows, :], shift_sb[0:rows, i : i + 1])
            rounded_sb = nl.ndarray((rows, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_scalar(
                dst=rounded_sb, data=o_sb[0:rows, i, :], op0=nl.multiply, operand0=total
            )
            nisa.dma_copy(dst=o_rows[row : row + rows, :], src=rounded_sb)
            row += rows


@nki.jit
def prefill_attention_kernel(
    q_hbm: Any,
    rows_hbm: Any,
    starts_hbm: Any,
    allowed_hbm: Any,
    sink_hbm: Any,
    scale: float,
    cut: Any,
    shares_keys: int,
) -> Any:
    """q [T, H, D], rows [N, D] bf16, starts [1, B * V] int32, allowed [B, V, tokens, K] uint8,
    sink [rows of a tile, 1] fp32 -> o [T, H, D] bf16; cut as in `_attend_block`."""
    num_tokens, heads, head_dim = q_hbm.shape
    query_blocks, num_visits, block_tokens = allowed_hbm.shape[0:3]
    o_hbm = nl.ndarray((num_tokens, heads, head_dim), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    starts_sb = nl.ndarray((1, query_blocks * num_visits), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=starts_sb, src=starts_hbm)
    if shares_keys:
        rows = num_tokens * heads
        part_hbm = nl.ndarray((2, rows, head_dim + 2), dtype=nl.float32, buffer=nl.shared_hbm)
        o_sb, total_sb, shift_sb, _ = _attend_block(
            q_hbm, rows_hbm, starts_sb, allowed_hbm, scale, cut, 0, core_share(num_visits)
        )
        leave_half(part_hbm, o_sb[:, 0, :], total_sb, shift_sb)
        nisa.core_barrier(data=part_hbm, cores=(0, 1))
        join_halves(part_hbm, sink_hbm, o_hbm.reshape((rows, head_dim)))
        return o_hbm
    sink_sb = nl.ndarray(sink_hbm.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=sink_sb, src=sink_hbm)
    first_block, blocks = core_share(query_blocks)
    for block in range(first_block, first_block + blocks):
        state = _attend_block(
            q_hbm, rows_hbm, starts_sb, allowed_hbm, scale, cut, block, (0, num_visits)
        )
        _write_block(state, sink_sb, o_hbm, block * block_tokens)
    return o_hbm


def prefill_attention(
    q: torch.Tensor,
    rows: torch.Tensor,
    allowed: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """o [T, H, D] bf16 of q [T, H, D] bf16 over the rows [N, D] bf16 that allowed [T, N] opens.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype, size or scale.
        UsageError: shapes that do not meet, a mask that is not bool.
    """
    op = "prefill_attention"
    require_trn2(op, numerics)
    require_attention(op, q, "rows", rows, sink)
    num_tokens, num_heads, head_dim = q.shape
    require_mask(op, "allowed", allowed, (num_tokens, rows.shape[0]))
    if not _SCALES[0] <= scale <= _SCALES[1]:
        raise KernelError("UNSUPPORTED", f"{op}: scale is {scale}, this kernel takes 2^-13..2^6")
    if q.numel() == 0:
        return q.new_empty(q.shape)
    if rows.shape[0] == 0:  # a row that nobody sees stands in for none
        rows, allowed = rows.new_zeros((1, head_dim)), allowed.new_zeros((num_tokens, 1))
    cut = cut_of(num_tokens, num_heads, rows.shape[0], active_lnc())
    visits = visits_of(allowed, cut)
    return launch(
        prefill_attention_kernel,
        q,
        rows,
        visits.starts,
        visits.allowed,
        sink.float().repeat(cut.tile_tokens).unsqueeze(1),
        float(scale),
        (cut.tiles, cut.partitions, cut.rows_a_partition),
        int(cut.shares_keys and visits.allowed.shape[1] > 1),
    )
