"""Coefficients of the hyper-connections, with Sinkhorn normalisation (model.md §2.3)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from references.operands import require, require_float, require_shape
from references.precision import accumulate_dtype

__all__ = ["hc_mixes"]


def hc_mixes(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_eps: float,
    hc_eps: float,
    iterations: int,
    *,
    numerics: Numerics,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pre [T, m], post [T, m] and comb [T, m, m] (source, destination) of streams [T, m, d].

    fn [(2+m)m, m*d], base [(2+m)m], scale [3] (pre, post, comb). Everything stays in the
    accumulation dtype. `iterations` counts row and column steps alike; the first row step is the
    softmax and the last step is a column step.

    Raises:
        UsageError: shapes that do not meet, iterations below 1, no float tensors.
    """
    op = "hc_mixes"
    require_float(op, "streams", streams, ndim=3)
    num_rows, m, width = streams.shape
    for name, tensor, shape in (
        ("fn", fn, ((2 + m) * m, m * width)),
        ("base", base, ((2 + m) * m,)),
        ("scale", scale, (3,)),
    ):
        require_float(op, name, tensor)
        require_shape(op, name, tensor, shape)
    require(iterations >= 1, op, f"iterations is {iterations}: it must be at least 1")
    acc = accumulate_dtype(numerics)
    flat = streams.to(acc).reshape(num_rows, m * width)
    norm = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    z = functional.linear(flat, fn.to(acc)) * norm
    z = z * scale.to(acc).repeat_interleave(_repeats(m)) + base.to(acc)
    pre = torch.sigmoid(z[:, :m]) + hc_eps
    post = 2.0 * torch.sigmoid(z[:, m : 2 * m])
    comb = _sinkhorn(z[:, 2 * m :].reshape(num_rows, m, m), hc_eps, iterations)
    return pre, post, comb


@lru_cache(maxsize=8)
def _repeats(m: int) -> torch.Tensor:
    """How many coefficients each of the three scales serves."""
    return torch.tensor([m, m, m * m])


def _sinkhorn(logits: torch.Tensor, eps: float, iterations: int) -> torch.Tensor:
    comb = torch.softmax(logits, dim=-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb
