"""Linear layer with a plain weight: no activation quantisation (model.md §2.1)."""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from references.linear_fp8 import finished
from references.operands import require_float, require_shape
from references.precision import accumulate_dtype, product_dtype

__all__ = ["linear_bf16"]


def linear_bf16(
    x: torch.Tensor, weight: torch.Tensor, output: str, *, numerics: Numerics
) -> torch.Tensor:
    """y [T, N] = x [T, K] times weight [N, K]^T.

    The weight may be given in any float dtype; one that already has the accumulation dtype is
    used without a copy.

    Raises:
        UsageError: shapes that do not meet, no float tensor, unknown `output`.
    """
    require_float("linear_bf16", "x", x, ndim=2)
    require_float("linear_bf16", "weight", weight, ndim=2)
    require_shape("linear_bf16", "weight", weight, (weight.shape[0], x.shape[1]))
    dtype = product_dtype(numerics, output)
    if not x.dtype == weight.dtype == dtype:  # a float32 operand keeps its bits
        dtype = accumulate_dtype(numerics)
    sums = functional.linear(x.to(dtype), weight.to(dtype))
    return finished("linear_bf16", sums, output, numerics)
