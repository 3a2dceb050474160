"""Scores, softmax and weighted rows of sparse attention, for the softmax rows of one group.

rows = (token, head) of a group    M entries a token    D head dim, cut into pieces D' <= 128
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl
from kernels.sparse_attention_tiles import keys_by_channel
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32

__all__ = ["exponentials", "inverse_denominator", "scores", "weighted_rows"]

_SCORE_FLOOR = -1e30
_TINY = 1e-30
_SINK_LIMIT = 80.0


def scores(qt_sb: Any, gathered_sb: Any, tokens: int, rows: int, entries: int) -> Any:
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
        # Two of three copies are ScalarE's, which has only the exponentials to do.
        engine = nisa.engine.vector if first // batch % 3 == 2 else nisa.engine.scalar
        kt_sb = keys_by_channel(flat_sb[:, first : first + count, :], piece, engine)
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


def exponentials(banks: Any, mask_sb: Any, scale: float) -> Any:
    """(P bf16 [rows, M], its unrounded row sum, -m), the last two fp32 [rows, 1].

    m is the maximum over keys alone, so that the best key's P is exactly 1 whatever the sink.
    """
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
    nisa.activation_reduce(
        dst=weight_sb,
        op=nl.exp,
        data=scores_sb,
        bias=shift_sb,
        reduce_op=nl.add,
        reduce_res=total_sb,
    )
    return weight_sb, total_sb, shift_sb


def weighted_rows(weight_sb: Any, gathered_sb: Any, owner_sb: Any, tokens: int) -> Any:
    """PSUM fp32 [rows, D]: P times each token's own gathered rows; owner_sb only for tokens > 1."""
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


def inverse_denominator(total_sb: Any, sink_sb: Any, shift_sb: Any) -> None:
    """total = 1 / (total + exp(sink - m)), in place, fp32 [rows, 1]."""
    rows = total_sb.shape[0]
    sink_weight_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    # Beyond the limit the keys weigh less than bf16 shows; exp itself must stay finite.
    nisa.tensor_scalar(
        dst=sink_weight_sb,
        data=sink_sb,
        op0=nl.add,
        operand0=shift_sb,
        op1=nl.minimum,
        operand1=_SINK_LIMIT,
    )
    nisa.activation(dst=sink_weight_sb, op=nl.exp, data=sink_weight_sb)
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
