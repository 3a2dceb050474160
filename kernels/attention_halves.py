"""Two cores that share the keys of one tile of softmax rows: what each leaves, and how they join.

R softmax rows (token, head), <= 128    D head dim
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl
from kernels.sparse_attention_softmax import inverse_denominator
from kernels.tiling import core_share

__all__ = ["join_halves", "leave_half"]


def leave_half(part_hbm: Any, o: Any, total_sb: Any, shift_sb: Any) -> None:
    """part [core, R, D + 2] fp32: this core's unscaled o [R, D], its row sum and -m."""
    rows, head_dim = o.shape
    part_sb = nl.ndarray((rows, head_dim + 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=part_sb[:, 0:head_dim], src=o)
    nisa.tensor_copy(dst=part_sb[:, head_dim : head_dim + 1], src=total_sb)
    nisa.tensor_copy(dst=part_sb[:, head_dim + 1 : head_dim + 2], src=shift_sb)
    nisa.dma_copy(dst=part_hbm[nl.program_id(0), :, :], src=part_sb)


def join_halves(part_hbm: Any, sink_hbm: Any, o_rows: Any) -> None:
    """This core's share of the rows of o [R, D] bf16 from both parts, rescaled to the common
    maximum; sink [R, 1] fp32. Call it behind a barrier."""
    num_rows, head_dim = o_rows.shape
    first_row, rows = core_share(num_rows)
    if rows == 0:
        return
    width = head_dim + 1
    part_sb = nl.ndarray((rows, 2, width + 1), dtype=nl.float32, buffer=nl.sbuf)
    shift_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    factor_sb = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    sum_sb = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    sink_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    o_sb = nl.ndarray((rows, head_dim), dtype=nl.bfloat16, buffer=nl.sbuf)
    row = width + 1
    nisa.dma_copy(
        dst=part_sb,
        src=part_hbm.ap(
            pattern=[[row, rows], [num_rows * row, 2], [1, row]], offset=first_row * row
        ),
    )
    nisa.dma_copy(dst=sink_sb, src=sink_hbm[first_row : first_row + rows, :])
    # -m = min(-m0, -m1); each half counts exp(m_c - m).
    nisa.tensor_reduce(dst=shift_sb, op=nl.minimum, data=part_sb[:, :, width], axis=1)
    nisa.activation(dst=factor_sb, op=nl.exp, data=part_sb[:, :, width], scale=-1.0, bias=shift_sb)
    nisa.tensor_scalar(
        dst=sum_sb, data=part_sb[:, 0, 0:width], op0=nl.multiply, operand0=factor_sb[:, 0:1]
    )
    nisa.scalar_tensor_tensor(
        dst=sum_sb,
        data=part_sb[:, 1, 0:width],
        op0=nl.multiply,
        operand0=factor_sb[:, 1:2],
        op1=nl.add,
        operand1=sum_sb,
    )
    total = sum_sb[:, head_dim:width]
    inverse_denominator(total, sink_sb, shift_sb)
    nisa.tensor_scalar(dst=o_sb, data=sum_sb[:, 0:head_dim], op0=nl.multiply, operand0=total)
    nisa.dma_copy(dst=o_rows[first_row : first_row + rows, :], src=o_sb)
