"""FlashMLA's functions that this model calls, in plain torch (model.md §5.3).

Caches are uint8 pages in the planar layout of references.paged_caches ("V41", 528 bytes at head
dim 512, for the window; "V41_FP4", 288 bytes, only as extra cache), or bf16 [pages, page, 1, D].
Keys are values (K = V), the value being the first head_dim_v channels. Outputs are bf16, sums
float32; P is rounded to bf16 for the weighted sum, as in the CUDA kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from references.fused_attention import fused_norm_rope_attn_rope_cast
from references.latent_rows import (
    attend_rows,
    cache_values,
    rows_within_length,
    selected_rows,
)
from references.operands import refuse, require, require_float, require_ids, require_shape

__all__ = [
    "FlashMLASchedMeta",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "fused_norm_rope_attn_rope_cast",
    "get_mla_metadata",
]


@dataclass(frozen=True, slots=True)
class FlashMLASchedMeta:
    """A schedule for CUDA; empty here."""


def get_mla_metadata(*_: object, **__: object) -> FlashMLASchedMeta:
    """What flash_mla_with_kvcache takes as `sched_meta`."""
    return FlashMLASchedMeta()


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    sched_meta: FlashMLASchedMeta,  # noqa: ARG001 - a schedule for CUDA
    num_splits: None = None,  # noqa: ARG001 - the same
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [b, s_q, h, head_dim_v] bf16 and lse [b, h, s_q] float32 of q [b, s_q, h, D].

    Sparse where `indices` [b, s_q, topk] is given (page-absolute rows: page * page_size +
    offset; -1: none), else dense over `block_table` and `cache_seqlens`. lse is the natural
    logarithm of the keys' weights without the sink, -inf where a row has no key (its output
    is 0); out is scaled by exp(lse) / (exp(lse) + exp(sink)).

    Raises:
        UsageError: shapes that do not meet, rows outside the cache, both or neither of indices
            and block_table, an extra cache without indices.
    """
    op = "flash_mla_with_kvcache"
    require_float(op, "q", q, ndim=4)
    batch, num_queries, num_heads, head_dim = q.shape
    keys = cache_values(op, k_cache, head_dim, "kv_fp8" if is_fp8_kvcache else None)
    if indices is None:
        rows = _dense_rows(op, q, k_cache, block_table, cache_seqlens, causal)
    else:
        require(block_table is None, op, "pass indices or a block_table, not both")
        rows = selected_rows(op, "indices", indices, topk_length, (batch, num_queries))
    if extra_k_cache is not None:
        if extra_indices_in_kvcache is None:
            return refuse(op, "extra_k_cache needs extra_indices_in_kvcache")
        extra = selected_rows(
            op,
            "extra_indices_in_kvcache",
            extra_indices_in_kvcache,
            extra_topk_length,
            (batch, num_queries),
        )
        shifted = torch.where(extra >= 0, extra + len(keys), extra)
        rows = torch.cat((rows, shifted), dim=1)
        keys = torch.cat((keys, cache_values(op, extra_k_cache, head_dim, "kv_fp4")))
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    flat = q.reshape(batch * num_queries, num_heads, head_dim)
    out, _, lse = attend_rows(flat, keys, rows, attn_sink, scale)
    shape = (batch, num_queries, num_heads)
    return (
        out[..., :head_dim_v].reshape(*shape, head_dim_v),
        lse.reshape(shape).transpose(1, 2).contiguous(),
    )


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    indexer_topk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out [s, h, d_v] bf16, max_logits and lse [s, h] float32 of unpacked bf16 keys.

    q [s, h, D], kv [n, 1, D], indices [s, 1, topk] with -1 or a number >= n for no key,
    topk_length [s]. indexer_topk is how many of the topk the indexer chose: a hint to the CUDA
    scheduler that changes no result, checked against topk.

    Raises:
        UsageError: shapes that do not meet, wrong dtypes.
    """
    op = "flash_mla_sparse_fwd"
    require_float(op, "q", q, ndim=3)
    require_float(op, "kv", kv, ndim=3)
    require_shape(op, "kv", kv, (kv.shape[0], 1, q.shape[2]))
    require_ids(op, "indices", indices, ndim=3)
    require_shape(op, "indices", indices, (q.shape[0], 1, indices.shape[2]))
    if indexer_topk is not None:
        width = indices.shape[2]
        require(0 <= indexer_topk <= width, op, f"indexer_topk {indexer_topk} of topk {width}")
    rows = indices.squeeze(1).long()
    rows = torch.where(rows >= kv.shape[0], -1, rows)
    rows = rows_within_length(op, rows, topk_length)
    out, largest, lse = attend_rows(q, kv.squeeze(1).float(), rows, attn_sink, sm_scale)
    return out[..., :d_v], largest, lse


def _dense_rows(
    op: str,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """[b * s_q, longest] rows of every key a query sees; the last query sees all."""
    if block_table is None or cache_seqlens is None:
        return refuse(op, "pass indices, or block_table and cache_seqlens")
    batch, num_queries = q.shape[:2]
    require_ids(op, "block_table", block_table, ndim=2)
    require_ids(op, "cache_seqlens", cache_seqlens, ndim=1)
    require_shape(op, "cache_seqlens", cache_seqlens, (batch,))
    page_size, longest = k_cache.shape[1], int(cache_seqlens.max()) if batch else 0
    room = block_table.shape[1] * page_size
    require(longest <= room, op, f"a sequence of {longest} keys, its pages hold {room}")
    at = torch.arange(longest)
    rows = block_table[:, at // page_size].long() * page_size + at % page_size
    seen = cache_seqlens.unsqueeze(1).expand(batch, num_queries)
    if causal:
        seen = seen - torch.arange(num_queries - 1, -1, -1)
    hidden = at >= seen.unsqueeze(-1)
    expanded = rows.unsqueeze(1).expand(batch, num_queries, longest)
    return expanded.masked_fill(hidden, -1).reshape(batch * num_queries, longest)
