"""Sparse MLA attention: selected latent rows are keys and values, with a sink (model.md §2.4)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require, require_float, require_ids, require_shape
from references.precision import accumulate_dtype, activation_dtype, rounded
from references.values import has_values

__all__ = ["sparse_attention"]

_SCORE_FLOOR = -1e30
# Rows are taken in slices whose gathered keys stay in a core's cache until they are used. A graph
# holds every slice anew, so there they only stay below about 64 MiB.
_CACHED_VALUES = 1 << 19
_CAPTURED_VALUES = 1 << 23


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
    all_present = _all_name_a_row(indices, kv.shape[0])
    attend = _attend_all if all_present else _attend_present
    table, rows = _key_table(kv, indices, accumulate_dtype(numerics), all_present=all_present)
    num_values = _CACHED_VALUES if has_values(indices) else _CAPTURED_VALUES
    slice_rows = max(1, num_values // (indices.shape[1] * head_dim))
    slices = [slice(first, first + slice_rows) for first in range(0, num_rows, slice_rows)]
    parts = [attend(q[part], table, rows[part], sink, scale, numerics) for part in slices]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _key_table(
    kv: torch.Tensor, indices: torch.Tensor, dtype: torch.dtype, *, all_present: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [N, D] and the row of each index [T, M]; the last key is zero where some are absent."""
    if kv.shape[0] > indices.numel():
        kv = kv.index_select(0, indices.clamp(min=0).flatten())
        own = torch.arange(len(kv), device=kv.device).view(indices.shape)
        indices = own if all_present else torch.where(indices < 0, -1, own)
    kv = kv.to(dtype)
    if all_present:
        return kv, indices
    return torch.cat([kv, kv.new_zeros(1, kv.shape[1])]), torch.where(indices < 0, len(kv), indices)


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
    table: torch.Tensor,
    rows: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    numerics: Numerics,
) -> torch.Tensor:
    """Rows of which some are the table's last, which is no key."""
    keys = _gathered(table, rows)
    absent = rows == table.shape[0] - 1
    scores = torch.bmm(q.to(keys.dtype), keys.transpose(1, 2)).mul_(scale)
    scores.masked_fill_(absent.unsqueeze(1), -torch.inf)
    o = _weighted_sum(scores, keys, sink, numerics)
    # Without a key and without a sink (-inf) the division was 0 / 0.
    return o.masked_fill_(absent.all(1).view(-1, 1, 1), 0.0)


def _attend_all(
    q: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    numerics: Numerics,
) -> torch.Tensor:
    """Rows that are all keys."""
    keys = _gathered(table, rows)
    scores = torch.bmm(q.to(keys.dtype), keys.transpose(1, 2)).mul_(scale)
    return _weighted_sum(scores, keys, sink, numerics)


def _gathered(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[T, M, D]: rows [T, M] of the table."""
    return table.index_select(0, rows.flatten()).view(*rows.shape, table.shape[1])


def _weighted_sum(
    scores: torch.Tensor, keys: torch.Tensor, sink: torch.Tensor, numerics: Numerics
) -> torch.Tensor:
    largest = scores.amax(-1, keepdim=True).clamp_(min=_SCORE_FLOOR)
    weights = torch.exp(scores.sub_(largest))
    sink_weight = torch.exp(sink.to(keys.dtype).view(1, -1, 1) - largest)
    denominator = weights.sum(-1, keepdim=True).add_(sink_weight)
    coarse = rounded(weights, numerics).to(keys.dtype)
    return rounded(torch.bmm(coarse, keys).div_(denominator), numerics)
