"""What every part of the model is built from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config.model import ModelConfig
from engine.ops import BoundOps
from engine.parallel.expert_exchange import ExpertExchange
from engine.parallel.group import Group
from engine.precision import accumulate_dtype, activation_dtype, rounded
from engine.weights.layout import RankLayout
from harness.core.numerics import Numerics

__all__ = ["Runtime"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Configuration, ops, numerics and this rank's place among the ranks.

    Attributes:
        group: the ranks that share this rank's batch.
        exchange: the way to the ranks that share the experts.
    """

    config: ModelConfig
    ops: BoundOps
    numerics: Numerics
    layout: RankLayout
    group: Group
    exchange: ExpertExchange

    @property
    def activation(self) -> torch.dtype:
        """dtype of activations."""
        return activation_dtype(self.numerics)

    @property
    def accumulate(self) -> torch.dtype:
        """dtype of sums."""
        return accumulate_dtype(self.numerics)

    def as_activation(self, x: torch.Tensor) -> torch.Tensor:
        """A complete sum, rounded once to the activation dtype."""
        return rounded(x, self.activation)

    def on_fp8_grid(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K] rounded onto the window cache's grid, unchanged without quantisers."""
        if not self.numerics.quantise:
            return x
        codes, scale = self.ops.quantise_fp8(x)
        values: torch.Tensor = self.ops.dequantise_fp8(codes, scale)
        return values

    def on_fp4_grid(self, x: torch.Tensor, block: int) -> torch.Tensor:
        """x [T, K] rounded onto the fp4 grid of block 16 or 32, unchanged without quantisers."""
        if not self.numerics.quantise:
            return x
        codes, scale = self.ops.quantise_fp4(x, block)
        values: torch.Tensor = self.ops.dequantise_fp4(codes, scale, block)
        return values
