"""Pooling of token groups into compressed latents (model.md §2.5)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require_float, require_multiple, require_shape
from references.precision import accumulate_dtype, rounded

__all__ = ["compress_pool"]


def compress_pool(
    kv: torch.Tensor, gate: torch.Tensor, ratio: int, *, numerics: Numerics
) -> torch.Tensor:
    """latent [T/ratio, D]: per channel softmax over the gates of each `ratio` rows, weighted sum.

    kv and gate [T, D] are unrounded sums; the caller holds back the rows of an open group. With
    ratio 1 the softmax is 1 and the latent is kv, rounded.

    Raises:
        UsageError: T no multiple of ratio, shapes that differ, no float tensors.
    """
    require_float("compress_pool", "kv", kv, ndim=2)
    require_float("compress_pool", "gate", gate, ndim=2)
    require_shape("compress_pool", "gate", gate, tuple(kv.shape))
    require_multiple("compress_pool", "T", kv.shape[0], ratio)
    acc = accumulate_dtype(numerics)
    groups = (kv.shape[0] // ratio, ratio, kv.shape[1])
    shares = torch.softmax(gate.to(acc).reshape(groups), dim=1)
    pooled = (kv.to(acc).reshape(groups) * shares).sum(1)
    return rounded(pooled, numerics)
