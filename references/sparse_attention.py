"""Sparse MLA attention: selected latent rows are keys and values, with a sink (model.md §2.4)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require, require_float, require_ids, require_shape
from references.precision import accumulate_dtype, activation_dtype, rounded
from references.values import has_values

__all__ = ["sparse_attention"]

_SCORE_FLOOR = -1e30
# Rows are taken in slices so that the gathered keys stay below about 64 MiB.
_GATHERED_VALUES = 1 << 23


def sparse_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """o [T, H, D] of q [T, H, D] over rows indices [T, M] of kv [n, D].

    P = exp(s - max s), s = scale * q.k; o = sum(P k) / (sum(P) + exp(sink - max s)). Index -1 is
    no key; a row without keys gives 0; rows of kv that no index names are never read. The
    official kernel rounds P to bf16 for the weighted sum but not for the denominator: here P is
    rounded to the activation dtype, so not at all in `exact` and golden runs.

    Raises:
        UsageError: shapes that do not meet, an index outside -1..n-1, wrong dtypes.
    """
    require_float("sparse_attention", "q", q, ndim=3)
    require_float("sparse_attention", "kv", kv, ndim=2)
    require_float("sparse_attention", "sink", sink, ndim=1)
    require_ids("sparse_attention", "indices", indices, ndim=2)
    num_rows, num_heads, head_dim = q.shape
    require_shape("sparse_attention", "kv", kv, (kv.shape[0], head_dim))
    require_shape("sparse_attention", "sink", sink, (num_heads,))
    require_shape("sparse_attention", "indices", indices, (num_rows, indices.shape[1]))
    if indices.numel() == 0 or kv.shape[0] == 0:
        require(not bool((indices >= 0).any()), "sparse_attention", "kv has no row to select")
        return torch.zeros_like(q, dtype=activation_dtype(numerics))
    attend = _attend_all if _all_name_a_row(indices, kv.shape[0]) else _attend_present
    slice_rows = max(1, _GATHERED_VALUES // (indices.shape[1] * head_dim))
    slices = [slice(first, first + slice_rows) for first in range(0, num_rows, slice_rows)]
    parts = [attend(q[rows], kv, indices[rows], sink, scale, numerics) for rows in slices]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _all_name_a_row(indices: torch.Tensor, num_rows: int) -> bool:
    """Whether no index is -1; without values to look at, one may be."""
    if not has_values(indices):
        return False
    low, high = (int(bound) for bound in torch.aminmax(indices))
    require(
        low >= -1 and high < num_rows,
        "sparse_attention",
        f"indices reach from {low} to {high}, kv has {num_rows} rows",
    )
    return low >= 0


def _attend_present(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    numerics: Numerics,
) -> torch.Tensor:
    """Indices of which some are -1."""
    absent = indices < 0
    # Row 0 stands in for an absent key and may hold anything, NaN included.
    keys = kv[indices.clamp(min=0)].masked_fill_(absent.unsqueeze(-1), 0.0)
    keys = keys.to(accumulate_dtype(numerics))
    scores = torch.bmm(q.to(keys.dtype), keys.transpose(1, 2)).mul_(scale)
    scores.masked_fill_(absent.unsqueeze(1), -torch.inf)
    o = _weighted_sum(scores, keys, sink, numerics)
    # Without a key and without a sink (-inf) the division was 0 / 0.
    return o.masked_fill_(absent.all(1).view(-1, 1, 1), 0.0)


def _attend_all(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    numerics: Numerics,
) -> torch.Tensor:
    """Indices that all name a row."""
    keys = kv[indices].to(accumulate_dtype(numerics))  # [T, M, D]
    scores = torch.bmm(q.to(keys.dtype), keys.transpose(1, 2)).mul_(scale)
    return _weighted_sum(scores, keys, sink, numerics)


def _weighted_sum(
    scores: torch.Tensor, keys: torch.Tensor, sink: torch.Tensor, numerics: Numerics
) -> torch.Tensor:
    largest = scores.amax(-1, keepdim=True).clamp_(min=_SCORE_FLOOR)
    weights = torch.exp(scores.sub_(largest))
    sink_weight = torch.exp(sink.to(keys.dtype).view(1, -1, 1) - largest)
    denominator = weights.sum(-1, keepdim=True).add_(sink_weight)
    coarse = rounded(weights, numerics).to(keys.dtype)
    return rounded(torch.bmm(coarse, keys).div_(denominator), numerics)
