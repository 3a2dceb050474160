"""Clamped SwiGLU with the routing weight before w2 (model.md §2.8)."""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from references.operands import require, require_float, require_shape
from references.precision import accumulate_dtype, rounded

__all__ = ["swiglu"]


def swiglu(
    gate: torch.Tensor,
    up: torch.Tensor,
    limit: float,
    route_weight: torch.Tensor | None,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """y [T, I] = route_weight [T] * silu(min(gate, limit)) * clamp(up, -limit, limit).

    The gate is limited from above only. Without route_weight the factor is absent.

    Raises:
        UsageError: shapes that differ, a limit that is not positive, no float tensors.
    """
    require_float("swiglu", "gate", gate, ndim=2)
    require_float("swiglu", "up", up, ndim=2)
    require_shape("swiglu", "up", up, tuple(gate.shape))
    require(limit > 0, "swiglu", f"limit is {limit}: it must be positive")
    acc = accumulate_dtype(numerics)
    y = functional.silu(gate.to(acc).clamp(max=limit)) * up.to(acc).clamp(-limit, limit)
    if route_weight is not None:
        require_float("swiglu", "route_weight", route_weight, ndim=1)
        require_shape("swiglu", "route_weight", route_weight, (gate.shape[0],))
        y = y * route_weight.to(acc).unsqueeze(-1)
    return rounded(y, numerics)
