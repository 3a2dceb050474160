"""MLA attention of a block of prompt tokens over rows they share, under a mask (model.md §2.4).

The same sum as `sparse_attention`, keyed the other way round: not a list of rows a token, but one
matrix of rows for all tokens and what each may see of it. Neighbouring tokens of a prompt see
nearly the same rows, so each row is read once for all of them.
"""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require_float, require_mask, require_shape
from references.precision import accumulate_dtype, activation_dtype, rounded
from references.values import has_values

__all__ = ["prefill_attention"]

_SCORE_FLOOR = -1e30
# Tokens are taken in slices so that their scores stay below about 64 MiB.
_SCORE_VALUES = 1 << 23


def prefill_attention(
    q: torch.Tensor,
    rows: torch.Tensor,
    allowed: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """o [T, H, D] of q [T, H, D] over the rows [N, D] that allowed [T, N] (bool) opens.

    P = exp(s - max s), s = scale * q.k; o = sum(P k) / (sum(P) + exp(sink - max s)). A token that
    sees nothing gives 0; rows that no token sees are never read and may hold anything. P is
    rounded to the activation dtype for the weighted sum but not for the denominator.

    Raises:
        UsageError: shapes that do not meet, wrong dtypes.
    """
    op = "prefill_attention"
    require_float(op, "q", q, ndim=3)
    require_float(op, "rows", rows, ndim=2)
    require_float(op, "sink", sink, ndim=1)
    num_tokens, num_heads, head_dim = q.shape
    require_shape(op, "rows", rows, (rows.shape[0], head_dim))
    require_shape(op, "sink", sink, (num_heads,))
    require_mask(op, "allowed", allowed)
    require_shape(op, "allowed", allowed, (num_tokens, rows.shape[0]))
    keys, seen = _keys_seen(rows, allowed, accumulate_dtype(numerics))
    if keys.shape[0] == 0:
        return torch.zeros_like(q, dtype=activation_dtype(numerics))
    slice_tokens = max(1, _SCORE_VALUES // (num_heads * keys.shape[0]))
    slices = [slice(first, first + slice_tokens) for first in range(0, num_tokens, slice_tokens)]
    parts = [_attend(q[part], keys, seen[part], sink, scale, numerics) for part in slices]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _keys_seen(
    rows: torch.Tensor, allowed: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [U, D] that any token sees, and who sees them [T, U]."""
    visible = allowed.any(0)
    if has_values(allowed):
        return rows[visible].to(dtype), allowed[:, visible]
    # In a graph no value decides a shape: all rows stay, and what nobody sees counts as 0.
    return rows.masked_fill(~visible.unsqueeze(1), 0.0).to(dtype), allowed


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    seen: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    numerics: Numerics,
) -> torch.Tensor:
    """Some tokens over all keys [U, D]; seen [T, U]."""
    scores = torch.matmul(q.to(keys.dtype), keys.T).mul_(scale)  # [T, H, U]
    scores.masked_fill_(~seen.unsqueeze(1), -torch.inf)
    largest = scores.amax(-1, keepdim=True).clamp_(min=_SCORE_FLOOR)
    weights = torch.exp(scores.sub_(largest))
    sink_weight = torch.exp(sink.to(keys.dtype).view(1, -1, 1) - largest)
    denominator = weights.sum(-1, keepdim=True).add_(sink_weight)
    coarse = rounded(weights, numerics).to(keys.dtype)
    o = torch.matmul(coarse, keys).div_(denominator)
    # Without a row to see and without a sink (-inf) the division was 0 / 0.
    blind = ~seen.any(1)
    return rounded(o, numerics).masked_fill_(blind.view(-1, 1, 1), 0.0)
