"""DeepGEMM's indexer faces (model.md §5.2): logits over plain, paged and block-sparse keys.

Queries are float8_e4m3fn [S, h, x] (their scales folded into `weights`, as there) or a pair
(packed fp4 [S, h, x/2], ue8m0 scales): scales as uint8 [S, h, x/32] or, for x = 128, as int32
[S, h] with four bytes each. Keys likewise; fp8 keys have one float32 scale a row. What is outside
a row's range is -inf.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.core.numerics import FAST
from references.index_scores import index_scores
from references.number_formats import decode_e2m1, decode_ue8m0
from references.operands import refuse, require, require_ids, require_shape
from references.paged_caches import page_values
from references.scaled_matrices import num_channels

__all__ = [
    "SparseLogitsMetadata",
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_fp4_paged_sparse_mqa_logits",
    "fp8_fp4_sparse_mqa_logits",
    "get_mqa_logits_metadata",
    "get_paged_mqa_logits_metadata",
    "get_paged_sparse_mqa_logits_metadata",
    "get_sparse_mqa_logits_metadata",
]

Operand = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class SparseLogitsMetadata:
    """The blocks of keys each row scores: ids [S, blocks], strictly ascending, -1 behind them."""

    block_indices: torch.Tensor
    block_size: int


def get_mqa_logits_metadata(*_: object, **__: object) -> None:
    """A schedule for CUDA; nothing here."""


def get_paged_mqa_logits_metadata(*_: object, **__: object) -> None:
    """A schedule for CUDA; nothing here."""


def get_sparse_mqa_logits_metadata(
    sparse_kv_block_indices: torch.Tensor, sparse_block_kv: int = 8
) -> SparseLogitsMetadata:
    """Check and keep the blocks.

    Raises:
        UsageError: ids that do not ascend, or a block size that is neither 8 nor 16.
    """
    op = "sparse_mqa_logits"
    require_ids(op, "sparse_kv_block_indices", sparse_kv_block_indices, ndim=2)
    require(sparse_block_kv in (8, 16), op, f"sparse_block_kv is {sparse_block_kv}: 8 or 16")
    ids = sparse_kv_block_indices.long()
    after, before = ids[:, 1:], ids[:, :-1]
    ordered = ((after > before) & (before >= 0)) | (after == -1)
    require(bool(ordered.all()), op, "block ids must ascend strictly, -1 at the end only")
    return SparseLogitsMetadata(ids, sparse_block_kv)


get_paged_sparse_mqa_logits_metadata = get_sparse_mqa_logits_metadata


def _pair(operand: Operand) -> tuple[torch.Tensor, torch.Tensor | None]:
    return operand if isinstance(operand, tuple) else (operand, None)


def _values(op: str, name: str, operand: Operand) -> torch.Tensor:
    """float32 [..., x] of fp8 or fp4 data with its scales."""
    data, scale = _pair(operand)
    width = num_channels(op, data)
    if data.dtype == torch.float8_e4m3fn:
        values = data.float()
        if scale is None:
            return values
        require(scale.dtype == torch.float32, op, f"{name}: fp8 data has float32 scales")
        require_shape(op, f"{name} scales", scale, tuple(data.shape[:-1]))
        return values * scale.unsqueeze(-1)
    if scale is None:
        return refuse(op, f"{name}: fp4 data needs scales")
    if scale.dtype == torch.int32:
        scale = scale.contiguous().view(torch.uint8).reshape(*scale.shape, 4)
    require(scale.dtype == torch.uint8, op, f"{name}: fp4 scales are ue8m0 bytes or packed int32")
    require_shape(op, f"{name} scales", scale, (*data.shape[:-1], width // 32))
    values = decode_e2m1(data.view(torch.uint8), torch.float32).reshape(*scale.shape, 32)
    return (values * decode_ue8m0(scale, torch.float32).unsqueeze(-1)).flatten(-2)


def fp8_fp4_mqa_logits(
    q: Operand,
    kv: Operand,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    max_seqlen_k: int = 0,
    logits_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """logits [S, n] = sum over heads of weights * relu(q . k) for keys ks[s] <= j < ke[s].

    With max_seqlen_k the columns count from ks[s] and there are max_seqlen_k of them.

    Raises:
        UsageError: shapes that do not meet, wrong dtypes.
    """
    op = "fp8_fp4_mqa_logits"
    queries, keys = _values(op, "q", q), _values(op, "kv", kv)
    rows, num_keys = queries.shape[0], keys.shape[0]
    for name, bound in (("ks", ks), ("ke", ke)):
        require_ids(op, name, bound, ndim=1)
        require_shape(op, name, bound, (rows,))
    scores = index_scores(queries, keys, weights, numerics=FAST)
    columns = torch.arange(num_keys)
    inside = (columns >= ks.unsqueeze(1)) & (columns < ke.unsqueeze(1))
    scores = scores.masked_fill(~inside, -torch.inf)
    if max_seqlen_k:
        at = ks.long().unsqueeze(1) + torch.arange(max_seqlen_k)
        taken = scores.gather(1, at.clamp(max=max(num_keys - 1, 0)))
        scores = taken.masked_fill(at >= num_keys, -torch.inf)
    return scores.to(logits_dtype)


def fp8_fp4_paged_mqa_logits(
    q: Operand,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: object,  # noqa: ARG001 - a schedule for CUDA
    max_len: int,
    logits_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """logits [b * next_n, max_len] of q [b, next_n, h, x] over the pages of each sequence.

    Args:
        kv_cache: uint8 [pages, page_size, 1, x/2 + x/32] for fp4 or x + 4 for fp8, planar pages.
        weights: [b * next_n, h].
        context_lens: [b, next_n] (or [b]) keys that each row sees.
        block_table: [b, pages a sequence].

    Raises:
        UsageError: a page outside the cache, a context longer than max_len or its pages.
    """
    op = "fp8_fp4_paged_mqa_logits"
    queries = _values(op, "q", q)
    batch, next_n, _, width = queries.shape
    layout = "index_fp8" if _pair(q)[0].dtype == torch.float8_e4m3fn else "index_fp4"
    entries = page_values(kv_cache, layout, width)
    page_size = kv_cache.shape[1]
    lens = context_lens.reshape(batch, -1).expand(batch, next_n)
    require_ids(op, "block_table", block_table, ndim=2)
    reach = min(max_len, block_table.shape[1] * page_size)
    longest = int(lens.max()) if lens.numel() else 0
    require(longest <= reach, op, f"a context of {longest} keys, room for {reach}")
    logits = torch.full((batch * next_n, max_len), -torch.inf)
    for sequence in range(batch):
        pages = block_table[sequence, : -(-longest // page_size)]
        needed = pages[: -(-int(lens[sequence].max()) // page_size)].long()
        require(
            not len(needed) or (int(needed.min()) >= 0 and int(needed.max()) < len(kv_cache)),
            op,
            f"block_table of sequence {sequence} names a page outside 0..{len(kv_cache) - 1}",
        )
        at = (needed.unsqueeze(1) * page_size + torch.arange(page_size)).flatten()
        rows = slice(sequence * next_n, (sequence + 1) * next_n)
        scores = index_scores(queries[sequence], entries[at], weights[rows], numerics=FAST)
        hidden = torch.arange(len(at)) >= lens[sequence].unsqueeze(1)
        shown = scores.masked_fill(hidden, -torch.inf)[:, :max_len]
        logits[rows, : shown.shape[1]] = shown
    return logits.to(logits_dtype)


def _chosen_blocks(logits: torch.Tensor, metadata: SparseLogitsMetadata) -> torch.Tensor:
    ids, size = metadata.block_indices, metadata.block_size
    require_shape("sparse_mqa_logits", "block ids", ids, (logits.shape[0], ids.shape[1]))
    at = (ids.clamp(min=0).unsqueeze(-1) * size + torch.arange(size)).flatten(1)
    absent = (ids < 0).repeat_interleave(size, dim=1) | (at >= logits.shape[1])
    taken = logits.gather(1, at.clamp(max=logits.shape[1] - 1))
    return taken.masked_fill(absent, -torch.inf).bfloat16()


def fp8_fp4_sparse_mqa_logits(
    q: Operand,
    kv: Operand,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    metadata: SparseLogitsMetadata,
) -> torch.Tensor:
    """bf16 logits [S, blocks * block size] of the metadata's blocks, counted from key 0."""
    return _chosen_blocks(fp8_fp4_mqa_logits(q, kv, weights, ks, ke), metadata)


def fp8_fp4_paged_sparse_mqa_logits(
    q: Operand,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    metadata: SparseLogitsMetadata,
) -> torch.Tensor:
    """The same over paged keys; block ids are logical, within each sequence."""
    reach = block_table.shape[1] * kv_cache.shape[1]
    dense = fp8_fp4_paged_mqa_logits(q, kv_cache, weights, context_lens, block_table, None, reach)
    return _chosen_blocks(dense, metadata)
