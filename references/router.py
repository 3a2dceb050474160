"""MoE router: sqrt(softplus) scores, bias for selection only (model.md §2.8)."""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from references.operands import require, require_float, require_shape
from references.precision import accumulate_dtype

__all__ = ["router"]


def router(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    route_scale: float,
    gate_temp: float,
    normalise: bool,
    *,
    numerics: Numerics,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert ids [T, top_k] by falling biased score (ties: smaller id) and their weights.

    x [T, d], weight [E, d], bias [E]. Weights are the unbiased scores, divided by their sum plus
    1e-20 where `normalise` and top_k > 1, times `route_scale`, in the accumulation dtype.

    Raises:
        UsageError: shapes that do not meet, top_k outside 1..E, no float tensors.
    """
    require_float("router", "x", x, ndim=2)
    require_float("router", "weight", weight, ndim=2)
    require_float("router", "bias", bias, ndim=1)
    num_experts = bias.shape[0]
    require_shape("router", "weight", weight, (num_experts, x.shape[1]))
    require(1 <= top_k <= num_experts, "router", f"top_k {top_k} is not within 1..{num_experts}")
    acc = accumulate_dtype(numerics)
    logits = functional.linear(x.to(acc), weight.to(acc)) / gate_temp
    scores = torch.logaddexp(logits, logits.new_zeros(())).sqrt()
    ranked = torch.sort(scores + bias.to(acc), dim=1, descending=True, stable=True)
    expert_ids = ranked.indices[:, :top_k]
    weights = scores.gather(1, expert_ids)
    if normalise and top_k > 1:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return expert_ids, weights * route_scale
