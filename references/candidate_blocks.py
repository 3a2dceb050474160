"""Candidate blocks of the two-level top-k (model.md §2.7)."""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from references.operands import require, require_float, require_ids, require_shape
from references.selection import lowest_index_topk

__all__ = ["candidate_blocks"]


def candidate_blocks(
    scores: torch.Tensor,
    num_visible: torch.Tensor,
    block_size: int,
    num_blocks: int,
    *,
    numerics: Numerics,  # noqa: ARG001 - every op of the sheet takes it
) -> torch.Tensor:
    """Mask [T, n]: all entries of the `num_blocks` blocks with the largest visible score.

    The block of the newest visible entry is always among them; blocks without a visible entry
    never are; of equal blocks the lower wins. A row that sees nothing has no candidates.

    Raises:
        UsageError: shapes that do not meet, block_size or num_blocks below 1, wrong dtypes.
    """
    op = "candidate_blocks"
    require_float(op, "scores", scores, ndim=2)
    require_ids(op, "num_visible", num_visible, ndim=1)
    require_shape(op, "num_visible", num_visible, (scores.shape[0],))
    require(min(block_size, num_blocks) >= 1, op, "block_size and num_blocks are at least 1")
    num_entries = scores.shape[1]
    positions = torch.arange(num_entries, device=scores.device)
    visible = scores.masked_fill(positions >= num_visible.unsqueeze(1), -torch.inf)
    padded = functional.pad(visible, (0, -num_entries % block_size), value=-torch.inf)
    total_blocks = -(-num_entries // block_size)
    maxima = padded.reshape(scores.shape[0], total_blocks, block_size).amax(-1)
    newest = torch.div(num_visible - 1, block_size, rounding_mode="floor")
    block_ids = torch.arange(maxima.shape[1], device=scores.device)
    maxima = maxima.masked_fill(block_ids == newest.unsqueeze(1), torch.inf)
    kept = lowest_index_topk(maxima, num_blocks)
    return kept.repeat_interleave(block_size, dim=1)[:, :num_entries]
