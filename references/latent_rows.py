"""What FlashMLA's faces share: cached rows, selections of them, attention with its sums.

Caches are uint8 pages in the planar layout of references.paged_caches, or bf16
[pages, page, 1, D]. Keys are values (K = V). Outputs are bf16, sums float32.
"""

from __future__ import annotations

import torch

from harness.core.numerics import FAST
from references.operands import require_float, require_ids, require_shape
from references.paged_caches import page_values
from references.sparse_attention import sparse_attention

__all__ = ["attend_rows", "cache_values", "rows_within_length", "selected_rows"]


def cache_values(op: str, cache: torch.Tensor, head_dim: int, layout: str | None) -> torch.Tensor:
    """float32 [pages * page, D] of a cache in `layout`; None: bf16 pages."""
    if layout is not None:
        return page_values(cache, layout, head_dim)
    require_float(op, "k_cache", cache, ndim=4)
    require_shape(op, "k_cache", cache, (*cache.shape[:2], 1, head_dim))
    return cache.reshape(-1, head_dim).float()


def rows_within_length(op: str, rows: torch.Tensor, length: torch.Tensor | None) -> torch.Tensor:
    """rows [T, topk] with -1 from each row's length [T] on."""
    if length is None:
        return rows
    require_ids(op, "topk_length", length, ndim=1)
    require_shape(op, "topk_length", length, (rows.shape[0],))
    beyond = torch.arange(rows.shape[1]) >= length.unsqueeze(1)
    return rows.masked_fill(beyond, -1)


def selected_rows(
    op: str,
    name: str,
    indices: torch.Tensor,
    length: torch.Tensor | None,
    lead: tuple[int, int],
) -> torch.Tensor:
    """[b * s_q, topk] int64 of indices [b, s_q, topk], cut at length [b]."""
    require_ids(op, name, indices, ndim=3)
    require_shape(op, name, indices, (*lead, indices.shape[2]))
    rows = indices.reshape(-1, indices.shape[2]).long()
    if length is not None:
        require_shape(op, "topk_length", length, (lead[0],))
        length = length.repeat_interleave(lead[1])
    return rows_within_length(op, rows, length)


def attend_rows(
    q: torch.Tensor,
    keys: torch.Tensor,
    rows: torch.Tensor,
    sink: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out [T, h, D], largest score and lse [T, h]."""
    sinks = q.new_full((q.shape[1],), -torch.inf, dtype=torch.float32) if sink is None else sink
    out = sparse_attention(q, keys, rows, sinks, scale, numerics=FAST)
    largest = q.new_full(q.shape[:2], -torch.inf, dtype=torch.float32)
    lse = largest.clone()
    for row in range(q.shape[0]):
        present = rows[row][rows[row] >= 0]
        if len(present):
            scores = q[row].float() @ keys[present].t() * scale
            largest[row], lse[row] = scores.amax(-1), scores.logsumexp(-1)
    return out, largest, lse
