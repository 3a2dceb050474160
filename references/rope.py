"""Rotary embedding of adjacent pairs in the last channels (model.md §2.1)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import refuse, require_float, require_shape
from references.precision import accumulate_dtype, rounded

__all__ = ["rope"]


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, numerics: Numerics
) -> torch.Tensor:
    """y [T, ..., D]: pairs (2i, 2i+1) of the last R channels turned by the row's angles.

    Args:
        cos, sin: [T, R/2]. The inverse rotation takes -sin.

    Raises:
        UsageError: R wider than D, another number of rows, no float tensors.
    """
    require_float("rope", "x", x)
    require_float("rope", "cos", cos, ndim=2)
    require_float("rope", "sin", sin, ndim=2)
    require_shape("rope", "sin", sin, tuple(cos.shape))
    rope_dim = 2 * cos.shape[1]
    if x.ndim < 2 or x.shape[0] != cos.shape[0] or x.shape[-1] < rope_dim:
        refuse("rope", f"x {tuple(x.shape)} does not meet cos {tuple(cos.shape)}")
    acc = accumulate_dtype(numerics)
    angle_shape = (cos.shape[0], *(1,) * (x.ndim - 2), cos.shape[1])
    cos, sin = cos.to(acc).view(angle_shape), sin.to(acc).view(angle_shape)
    straight_dim = x.shape[-1] - rope_dim
    straight, pairs = torch.split(x, [straight_dim, rope_dim], dim=-1)
    pairs = pairs.to(acc)
    even, odd = pairs[..., 0::2], pairs[..., 1::2]
    turned = torch.empty(pairs.shape, dtype=acc, device=x.device)
    torch.mul(even, cos, out=turned[..., 0::2]).addcmul_(odd, sin, value=-1)
    torch.mul(even, sin, out=turned[..., 1::2]).addcmul_(odd, cos)
    return torch.cat((rounded(straight, numerics), rounded(turned, numerics)), dim=-1)
