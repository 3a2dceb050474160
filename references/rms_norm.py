"""RMSNorm (model.md §2.1): statistics in the accumulation dtype, one rounding at the end."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require_float, require_shape
from references.precision import accumulate_dtype, rounded

__all__ = ["rms_norm"]


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, numerics: Numerics
) -> torch.Tensor:
    """y [..., d] = weight [d] * x * rsqrt(mean(x^2) + eps).

    Raises:
        UsageError: weight of another width, no float tensors.
    """
    require_float("rms_norm", "x", x)
    require_float("rms_norm", "weight", weight, ndim=1)
    require_shape("rms_norm", "weight", weight, (x.shape[-1],))
    values = x.to(accumulate_dtype(numerics))
    mean_square = torch.linalg.vecdot(values, values).unsqueeze(-1) / x.shape[-1]
    normed = values * torch.rsqrt(mean_square + eps) * weight.to(values.dtype)
    return rounded(normed, numerics)
