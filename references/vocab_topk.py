"""Top-k over the vocabulary, sorted, with a tie rule."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require, require_float
from references.precision import accumulate_dtype
from references.selection import lowest_index_topk

__all__ = ["vocab_topk"]


def vocab_topk(
    logits: torch.Tensor, top_k: int, *, numerics: Numerics
) -> tuple[torch.Tensor, torch.Tensor]:
    """values and ids [T, top_k] of logits [T, V], descending; of equals the lowest id first.

    Logits of -inf (masked words) fill up a row that has fewer finite ones, by id.

    Raises:
        UsageError: top_k outside 1..V, no float tensor.
    """
    require_float("vocab_topk", "logits", logits, ndim=2)
    vocab_size = logits.shape[1]
    require(1 <= top_k <= vocab_size, "vocab_topk", f"top_k {top_k} is not within 1..{vocab_size}")
    chosen = lowest_index_topk(logits, top_k)
    if bool((chosen.sum(1) < top_k).any()):
        ranked = torch.sort(logits, dim=1, descending=True, stable=True)
        ids = ranked.indices[:, :top_k]
    else:
        ids = chosen.nonzero()[:, 1].view(-1, top_k)
        order = torch.sort(logits.gather(1, ids), dim=1, descending=True, stable=True).indices
        ids = ids.gather(1, order)
    return logits.gather(1, ids).to(accumulate_dtype(numerics)), ids
