"""Hyper-connections: residual streams to the input of a sublayer (model.md §2.3)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require_float, require_shape
from references.precision import accumulate_dtype, rounded

__all__ = ["hc_collapse"]


def hc_collapse(streams: torch.Tensor, pre: torch.Tensor, *, numerics: Numerics) -> torch.Tensor:
    """x [T, d] = sum over j of pre [T, j] * streams [T, j, d], one rounding.

    Raises:
        UsageError: shapes that do not meet, no float tensors.
    """
    require_float("hc_collapse", "streams", streams, ndim=3)
    require_float("hc_collapse", "pre", pre, ndim=2)
    require_shape("hc_collapse", "pre", pre, tuple(streams.shape[:2]))
    acc = accumulate_dtype(numerics)
    collapsed = torch.bmm(pre.to(acc).unsqueeze(1), streams.to(acc)).squeeze(1)
    return rounded(collapsed, numerics)
