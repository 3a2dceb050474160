"""Lightning-indexer scores (model.md §2.6), unrounded."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require_float, require_shape
from references.precision import accumulate_dtype

__all__ = ["index_scores"]

# Rows are taken in slices so that the per-head products stay below about 64 MiB.
_PRODUCT_VALUES = 1 << 23


def index_scores(
    q: torch.Tensor, keys: torch.Tensor, head_weights: torch.Tensor, *, numerics: Numerics
) -> torch.Tensor:
    """scores [T, n] = sum over heads of head_weights [T, h] * relu(q [T, h, x] . keys [n, x]).

    The heads are summed in the same order for every key, so that equal keys on the fp4 grid,
    whose products are exact, score exactly alike.

    Raises:
        UsageError: shapes that do not meet, no float tensors.
    """
    require_float("index_scores", "q", q, ndim=3)
    require_float("index_scores", "keys", keys, ndim=2)
    require_float("index_scores", "head_weights", head_weights, ndim=2)
    num_rows, num_heads, index_dim = q.shape
    require_shape("index_scores", "keys", keys, (keys.shape[0], index_dim))
    require_shape("index_scores", "head_weights", head_weights, (num_rows, num_heads))
    acc = accumulate_dtype(numerics)
    keys_by_channel = keys.to(acc).t()
    weights = head_weights.to(acc).unsqueeze(-1)
    scores = keys_by_channel.new_empty(num_rows, keys.shape[0])
    slice_rows = max(1, _PRODUCT_VALUES // max(1, num_heads * keys.shape[0]))
    for first in range(0, num_rows, slice_rows):
        rows = slice(first, first + slice_rows)
        products = torch.matmul(q[rows].to(acc), keys_by_channel).relu_()  # [T, h, n]
        torch.sum(products.mul_(weights[rows]), dim=1, out=scores[rows])
    return scores
