"""What both attention kernels check of their queries, rows and sinks before a launch."""

from __future__ import annotations

import torch

from harness.core.errors import KernelError
from kernels.contract import require, require_dtype, require_limit, require_shape
from kernels.sparse_attention_tiles import channel_piece
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32

__all__ = ["require_attention"]

_MAX_ROWS = 1 << 24
_MAX_PIECES = 4


def require_attention(
    op: str, q: torch.Tensor, rows_name: str, rows: torch.Tensor, sink: torch.Tensor
) -> None:
    """q [T, H, D] and rows [n, D] bf16, sink [H]; H <= 128, D <= 512 in at most 4 equal pieces.

    Raises:
        KernelError: UNSUPPORTED dtype or size.
        UsageError: shapes that do not meet.
    """
    require_dtype(op, "q", q, torch.bfloat16)
    require_dtype(op, rows_name, rows, torch.bfloat16)
    require_dtype(op, "sink", sink, torch.float32, torch.bfloat16)
    require(q.ndim == 3 and rows.ndim == 2, op, f"q must be [T, H, D] and {rows_name} [n, D]")
    _, num_heads, head_dim = q.shape
    require_shape(op, rows_name, rows, (rows.shape[0], head_dim))
    require_shape(op, "sink", sink, (num_heads,))
    require_limit(op, "H", num_heads, PARTITIONS)
    require_limit(op, "D", head_dim, PSUM_BANK_FP32)
    require_limit(op, f"rows of {rows_name}", rows.shape[0], _MAX_ROWS)
    if channel_piece(head_dim) * _MAX_PIECES < head_dim:
        raise KernelError("UNSUPPORTED", f"{op}: D is {head_dim}, cut it into <= 4 equal pieces")
