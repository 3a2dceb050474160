"""Seeded values of one case, shaped by its family."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.core.case import Case

__all__ = ["Draw"]

_SCALE_UP = 64.0
_FINITE_BF16 = (-(2.0**127) * (2 - 2.0**-7), 2.0**127 * (2 - 2.0**-7))
_SMALLEST_BF16_SUBNORMAL = 2.0**-133
_EXTREME_ROW_EXPONENTS = (0.0, -1.0, 1.0, -0.5, 0.5)  # times the spread an op can stand
# Rows down to where an epsilon of 1e-20 outweighs the mean square, and where a clamped amax of
# 1e-4 decides; nothing large beside them.
_SMALL_ROW_EXPONENTS = (-33.0, -8.0, -20.0, -14.0, -36.0)
# A block's other channels below its largest: where e4m3 and e2m1 are subnormal.
_BELOW_LARGEST = 2.0**-15
_SPREAD_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Draw:
    """The random source of one case; the same case draws the same values on every machine.

    Attributes:
        case: whose values.
        scalars: the case's scalars with the op's defaults filled in.
        fp8_max: the grid codes must be valid on, 448 or 240.
        rng: numpy's PCG64, seeded by the case's seed and id.
    """

    case: Case
    scalars: Mapping[str, Any]
    fp8_max: int
    rng: np.random.Generator

    @classmethod
    def of(cls, case: Case, scalars: Mapping[str, Any], fp8_max: int) -> Draw:
        """Seeded by everything that names the case."""
        return cls(case, scalars, fp8_max, np.random.default_rng([case.seed, _hash_of(case)]))

    @property
    def family(self) -> str:
        return self.case.family

    def special_rows(self, num_rows: int) -> torch.Tensor:
        """Every third row, the first included: those a family makes zero or masked."""
        return torch.arange(num_rows) % 3 == 0

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """fp32 normals."""
        return torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32) * scale)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64, low <= value < high."""
        return torch.from_numpy(self.rng.integers(low, high, shape))

    def activations(
        self, *shape: int, spread: int = 20, spikes: Sequence[float] = (), scale: float = 1.0
    ) -> torch.Tensor:
        """Values of the case's dtype as the family wants them.

        Args:
            spread: in "extremes", rows lie between 2^-spread and 2^spread.
            spikes: in "extremes", single values sprinkled in.
        """
        dtype: torch.dtype = getattr(torch, self.case.dtype)
        return self.floats(*shape, spread=spread, spikes=spikes, scale=scale).to(dtype)

    def blocks_of_activations(
        self, T: int, K: int, *, spread: int = 20, spikes: Sequence[float] = ()
    ) -> torch.Tensor:
        """Activations whose 16-wide blocks differ in size, so that each block's scale is its own
        and a neighbour's shows."""
        values = self.activations(T, K, spread=spread, spikes=spikes)
        exponents = self.integers(-3, 4, T, -(-K // 16)).repeat_interleave(16, 1)[:, :K]
        sized = values.float() * torch.exp2(exponents.float())
        return sized.clamp(*_FINITE_BF16).to(values.dtype)

    def floats(
        self, *shape: int, spread: int = 20, spikes: Sequence[float] = (), scale: float = 1.0
    ) -> torch.Tensor:
        """The same in fp32, for what ops take unrounded."""
        values = self.normal(*shape, scale=scale)
        match self.family:
            case "zero_rows":
                values[self.special_rows(shape[0])] = 0.0
            case "zero_block":
                self._zero_blocks(values)
            case "extremes":
                self._make_extreme(values, spread, spikes)
            case "ties":
                values = (values / scale * 1.5).round().clamp(-3, 3) * scale
            case "scale_up":
                values = values * _SCALE_UP
            case "small_rows":
                _scale_rows(values, _SMALL_ROW_EXPONENTS)
            case "spread_blocks":
                self._spread_blocks(values)
        return values

    def _spread_blocks(self, values: torch.Tensor) -> None:
        """The first channel of each 32 between 1 and 2, every mantissa in turn, the others far
        below it: a block scale that is off by one exponent shows in what is left of them."""
        rows = values.view(-1, values.shape[-1])
        rows *= _BELOW_LARGEST
        largest = rows[:, ::_SPREAD_BLOCK]
        steps = torch.arange(largest.numel()).reshape(largest.shape) % 128
        largest.copy_(1 + steps / 128)

    def _zero_blocks(self, values: torch.Tensor) -> None:
        """Zero a third of the 32-wide blocks of the last axis, the first among them."""
        rows = values.view(-1, values.shape[-1])
        for start in range(0, rows.shape[1], 32):
            rows[(torch.arange(len(rows)) + start // 32) % 3 == 0, start : start + 32] = 0.0

    def _make_extreme(self, values: torch.Tensor, spread: int, spikes: Sequence[float]) -> None:
        """Scale rows by powers of two, then sprinkle zeros of both signs, subnormals, spikes."""
        _scale_rows(values, [exponent * spread for exponent in _EXTREME_ROW_EXPONENTS])
        specials = [0.0, -0.0, _SMALLEST_BF16_SUBNORMAL, -_SMALLEST_BF16_SUBNORMAL, *spikes]
        flat = values.view(-1)
        if not len(flat):
            return
        num_sprinkled = max(1, len(flat) // 16)
        where = self.integers(0, len(flat), num_sprinkled)
        flat[where] = torch.tensor(specials)[self.integers(0, len(specials), num_sprinkled)]


def _scale_rows(values: torch.Tensor, exponents: Sequence[float]) -> None:
    """Row i times 2 to the power of exponents[i mod their number], rounded to whole powers."""
    steps = torch.tensor(exponents).round()
    of_row = steps[torch.arange(values.shape[0]) % len(steps)]
    values.mul_(torch.exp2(of_row).view(-1, *[1] * (values.dim() - 1)))


def _hash_of(case: Case) -> int:
    """Layout stays out: another layout of a case holds the same values."""
    text = f"{case.op}/{sorted(case.axes.items())}/{case.dtype}/{case.family}"
    return zlib.crc32(text.encode())
