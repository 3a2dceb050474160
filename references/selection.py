"""Top-k with a tie rule: of equal values the lower index is taken first."""

from __future__ import annotations

import torch

__all__ = ["lowest_index_topk"]


def lowest_index_topk(values: torch.Tensor, top_k: int) -> torch.Tensor:
    """Mask [T, n] of the `top_k` largest values of each row, -inf never chosen.

    torch.topk leaves the choice among equals open, so only its k-th value is used: everything
    above it is in, and of what equals it the first few.
    """
    top_k = min(top_k, values.shape[1])
    if top_k == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    cut = values.topk(top_k, dim=1).values[:, -1:]
    above = values > cut
    tied = values == cut
    room = top_k - above.sum(1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(1) <= room))
    return chosen & (values > -torch.inf)
