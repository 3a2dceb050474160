"""TileKernels' quantisation family (model.md §5.6)."""

from __future__ import annotations

import torch

from harness.core.numerics import FAST
from references.operands import require, require_float, require_ids, require_shape
from references.scaled_matrices import (
    Granularity,
    ScaledMatrix,
    cast_back,
    per_block_cast,
    per_token_cast,
)
from references.swiglu import swiglu

__all__ = ["quant"]


class quant:  # noqa: N801 - a namespace with the vendor's name
    """Casts with block scales."""

    @staticmethod
    def per_token_cast(
        x: torch.Tensor, fmt: str, num_per_channels: int = 32, round_sf: bool = True
    ) -> ScaledMatrix:
        """Data and float32 scales per row and num_per_channels; round_sf: powers of two."""
        return per_token_cast("per_token_cast", x, fmt, num_per_channels, round_sf)

    @staticmethod
    def per_block_cast(x: torch.Tensor, block: int = 32, round_sf: bool = True) -> ScaledMatrix:
        """fp8 data and float32 scales per block x block tile."""
        return per_block_cast("per_block_cast", x, block, round_sf)

    @staticmethod
    def cast_back(matrix: ScaledMatrix, granularity: Granularity = (1, 32)) -> torch.Tensor:
        """bf16 values."""
        return cast_back("cast_back", matrix, granularity)

    @staticmethod
    def swiglu_forward_and_per_token_cast(
        x: torch.Tensor,
        fmt: str = "e4m3",
        num_per_channels: int = 32,
        pos_to_token_topk: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        swiglu_clamp_value: float | None = None,
        round_sf: bool = True,
    ) -> ScaledMatrix:
        """Cast of route_weight * silu(gate) * up of x [R, 2*I] (gate first, then up).

        Args:
            pos_to_token_topk: [R] flat (token, slot) of each row, -1 for padding rows, which
                become 0; with `topk_weights` [T, k] it gives each row its weight.

        Raises:
            UsageError: an odd width, only one of the two, shapes that do not meet.
        """
        op = "swiglu_forward_and_per_token_cast"
        require_float(op, "x", x, ndim=2)
        require(x.shape[1] % 2 == 0, op, f"x is {x.shape[1]} wide: gate and up side by side")
        both = (pos_to_token_topk is None) == (topk_weights is None)
        require(both, op, "pos_to_token_topk and topk_weights go together")
        weight = None
        if pos_to_token_topk is not None and topk_weights is not None:
            require_ids(op, "pos_to_token_topk", pos_to_token_topk, ndim=1)
            require_shape(op, "pos_to_token_topk", pos_to_token_topk, (len(x),))
            taken = topk_weights.flatten()[pos_to_token_topk.clamp(min=0)]
            weight = taken.masked_fill(pos_to_token_topk < 0, 0.0)
        gate, up = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
        limit = torch.inf if swiglu_clamp_value is None else swiglu_clamp_value
        y = swiglu(gate, up, limit, weight, numerics=FAST)
        return per_token_cast(op, y, fmt, num_per_channels, round_sf)
