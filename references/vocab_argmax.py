"""Greedy choice over the vocabulary: the lowest id among the maxima."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require, require_float

__all__ = ["vocab_argmax"]


def vocab_argmax(
    logits: torch.Tensor,
    *,
    numerics: Numerics,  # noqa: ARG001 - every op of the sheet takes it
) -> torch.Tensor:
    """ids [T] int64 of logits [T, V]; torch.argmax promises the first of equal maxima.

    Raises:
        UsageError: an empty vocabulary, no float tensor.
    """
    require_float("vocab_argmax", "logits", logits, ndim=2)
    require(logits.shape[1] > 0, "vocab_argmax", "logits has no column")
    return logits.argmax(dim=1)
