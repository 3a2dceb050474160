"""Coefficients of the hyper-connections, with Sinkhorn normalisation (model.md §2.3)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from references.operands import require, require_float, require_shape
from references.precision import accumulate_dtype

__all__ = ["hc_mixes", "sinkhorn"]


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
    mean_square = torch.linalg.vecdot(flat, flat).unsqueeze(-1) / flat.shape[1]
    z = functional.linear(flat, fn.to(acc)).mul_(torch.rsqrt(mean_square + norm_eps))
    each_scale = scale.to(acc).index_select(0, _scale_of_coefficient(m).to(scale.device))
    z = torch.addcmul(base.to(acc), z, each_scale)
    gates = torch.sigmoid(z[:, : 2 * m])
    comb = sinkhorn(z[:, 2 * m :].reshape(num_rows, m, m), hc_eps, iterations)
    return gates[:, :m] + hc_eps, gates[:, m:] * 2.0, comb


@lru_cache(maxsize=8)
def _scale_of_coefficient(m: int) -> torch.Tensor:
    """Which of the three scales each coefficient takes."""
    return torch.tensor([0] * m + [1] * m + [2] * m * m)


@lru_cache(maxsize=8)
def _sum_matrices(
    m: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices [m*m, m*m] that put a row's, and a column's, sum in each of its places."""
    same, ones = torch.eye(m, dtype=dtype), torch.ones(m, m, dtype=dtype)
    return torch.kron(same, ones).to(device), torch.kron(ones, same).to(device)


def sinkhorn(logits: torch.Tensor, eps: float, iterations: int) -> torch.Tensor:
    """[T, m, m]: softmax, then columns and rows divided by their sum plus eps in turn.

    The sums are one small matrix product a step: with 40 steps in 80 calls a model step, it is
    the number of torch calls that costs time.
    """
    m = logits.shape[-1]
    row_sums, column_sums = _sum_matrices(m, logits.dtype, logits.device)
    comb = torch.softmax(logits, dim=-1).add_(eps).view(-1, m * m)
    offset = comb.new_full((m * m,), eps)
    sums = torch.addmm(offset, comb, column_sums)
    comb.div_(sums)
    for _ in range(iterations - 1):
        comb.div_(torch.addmm(offset, comb, row_sums, out=sums))
        comb.div_(torch.addmm(offset, comb, column_sums, out=sums))
    return comb.view(-1, m, m)
