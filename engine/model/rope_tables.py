"""Cosines and sines of the two rotary tables (model.md §2.1), made in fp64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.config.model import RopeConfig

__all__ = ["RopeTables", "Rotation", "rope_frequencies"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos, sin and -sin [T, R/2] of T positions."""

    cos: torch.Tensor
    sin: torch.Tensor
    minus_sin: torch.Tensor


def rope_frequencies(rope: RopeConfig, rope_dim: int, *, base: float, yarn: bool) -> torch.Tensor:
    """f_i [R/2] fp64: base^(-2i/R), bent by YaRN where asked for and configured."""
    exponents = torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim
    plain = base**-exponents
    if not yarn or rope.original_positions == 0:
        return plain

    def channel(turns: float) -> float:
        ratio = rope.original_positions / (2 * math.pi * turns)
        return rope_dim * math.log(ratio) / (2 * math.log(base))

    low = max(math.floor(channel(rope.beta_fast)), 0)
    high = min(math.ceil(channel(rope.beta_slow)), rope_dim - 1)
    ramp = (torch.arange(rope_dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)
    ramp = ramp.clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


class RopeTables:
    """`main` for layers of ratio 0 and the draft, `compress` for all others.

    Args:
        num_positions: longest context.
        dtype: of the tables, the accumulation dtype.
    """

    def __init__(
        self,
        rope: RopeConfig,
        rope_dim: int,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        positions = torch.arange(num_positions, dtype=torch.float64)
        self._tables = {}
        for name, base, yarn in (
            ("main", rope.theta, False),
            ("compress", rope.compress_theta, True),
        ):
            frequencies = rope_frequencies(rope, rope_dim, base=base, yarn=yarn)
            angles = torch.outer(positions, frequencies)
            self._tables[name] = (
                angles.cos().to(device, dtype),
                angles.sin().to(device, dtype),
            )

    def at(self, name: str, positions: torch.Tensor) -> Rotation:
        """Rows of a table at positions [T]."""
        cos, sin = self._tables[name]
        rows = sin[positions]
        return Rotation(cos[positions], rows, -rows)
