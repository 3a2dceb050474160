"""Top-k over cache positions (model.md §2.6): ascending ids, -1 where there is nothing left."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import refuse, require, require_float, require_ids, require_shape
from references.selection import lowest_index_topk

__all__ = ["topk_positions"]


def topk_positions(
    scores: torch.Tensor,
    num_visible: torch.Tensor,
    top_k: int,
    candidates: torch.Tensor | None,
    *,
    numerics: Numerics,  # noqa: ARG001 - every op of the sheet takes it
) -> torch.Tensor:
    """positions [T, min(top_k, n)] int64 of the best visible (and candidate) entries.

    scores [T, n], num_visible [T], candidates [T, n] bool or None. Ties go to the lower
    position; the ids of a row ascend and are followed by -1.

    Raises:
        UsageError: shapes that do not meet, top_k below 1, wrong dtypes.
    """
    op = "topk_positions"
    require_float(op, "scores", scores, ndim=2)
    require_ids(op, "num_visible", num_visible, ndim=1)
    require_shape(op, "num_visible", num_visible, (scores.shape[0],))
    require(top_k >= 1, op, f"top_k is {top_k}: it must be at least 1")
    num_rows, num_entries = scores.shape
    hidden = torch.arange(num_entries, device=scores.device) >= num_visible.unsqueeze(1)
    if candidates is not None:
        require_shape(op, "candidates", candidates, tuple(scores.shape))
        if candidates.dtype != torch.bool:
            refuse(op, f"candidates has dtype {candidates.dtype}: pass a bool mask")
        hidden = hidden | ~candidates
    chosen = lowest_index_topk(scores.masked_fill(hidden, -torch.inf), top_k)
    num_kept = min(top_k, num_entries)
    # What is not chosen lands in one column more, which is cut off: shapes depend on no value.
    places = torch.where(chosen, chosen.cumsum(1) - 1, num_kept)
    entries = torch.arange(num_entries, device=scores.device).expand(num_rows, -1)
    positions = scores.new_full((num_rows, num_kept + 1), -1, dtype=torch.int64)
    return positions.scatter_(1, places, entries)[:, :num_kept]
