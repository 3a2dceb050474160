"""How a mode sums and rounds (model.md §9), and the quantisers as casts of values (§2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from references.oracle.checkpoint import Floats

__all__ = ["ARITHMETICS", "Arithmetic"]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One mode.

    Attributes:
        dtype: of every number and every sum.
        rounds: whether activations are rounded to bf16 and the quantisers act.
    """

    name: str
    dtype: Any
    rounds: bool

    def act(self, x: Floats) -> Floats:
        """A value that the model stores as bf16."""
        if not self.rounds:
            return x
        # One rounding, ties to even: through float32 it would be two, and a value within 2^-25 of
        # a tie would round as the tie does. On the vectors of `long` one such value decides over
        # all rows that read its cache entry.
        mantissa, exponent = np.frexp(x)  # x = mantissa * 2^exponent, |mantissa| in [1/2, 1)
        rounded: Floats = np.ldexp(np.rint(mantissa * 256), exponent - 8)
        return rounded

    def fp8(self, x: Floats) -> Floats:
        """Linear inputs and window KV: e4m3 with a power-of-two scale per 32 channels."""
        if not self.rounds:
            return x
        blocks = _blocks(x, 32)
        amax = np.maximum(np.abs(blocks).max(-1, keepdims=True), np.float32(1e-4))
        scale = _power_of_two_at_least(amax * np.float32(1 / 448))
        codes = np.clip(blocks / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        values: Floats = codes.astype(self.dtype) * scale.astype(self.dtype)
        return values.reshape(x.shape)

    def fp4_for_index(self, x: Floats) -> Floats:
        """Index queries and keys: e2m1 with a power-of-two scale per 32 channels."""
        if not self.rounds:
            return x
        blocks = _blocks(x, 32)
        amax = np.maximum(np.abs(blocks).max(-1, keepdims=True), np.float32(6 * 2.0**-126))
        return self._fp4(blocks, _power_of_two_at_least(amax * np.float32(1 / 6)), x.shape)

    def fp4_for_kv(self, x: Floats) -> Floats:
        """Compressed KV: e2m1 with an e4m3 scale per 16 channels."""
        if not self.rounds:
            return x
        blocks = _blocks(x, 16)
        amax = np.maximum(np.abs(blocks).max(-1, keepdims=True), np.float32(6 * 2.0**-9))
        sixth = np.minimum(amax / np.float32(6), np.float32(448))
        scale = sixth.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return self._fp4(blocks, scale, x.shape)

    def _fp4(self, blocks: Any, scale: Any, shape: tuple[int, ...]) -> Floats:
        codes = np.clip(blocks / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        values: Floats = codes.astype(self.dtype) * scale.astype(self.dtype)
        return values.reshape(shape)


def _blocks(x: Floats, size: int) -> Any:
    return x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _power_of_two_at_least(t: Any) -> Any:
    mantissa, exponent = np.frexp(t)  # t = mantissa * 2^exponent, mantissa in [1/2, 1)
    return np.ldexp(np.float32(1), np.where(mantissa > 0.5, exponent, exponent - 1))


ARITHMETICS = {
    "exact": Arithmetic("exact", np.float64, rounds=False),
    "quantised": Arithmetic("quantised", np.float64, rounds=True),
    "fast": Arithmetic("fast", np.float32, rounds=True),
}
