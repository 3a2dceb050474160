"""From a Numerics to torch dtypes, and the one rounding of an op's output."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics

__all__ = ["accumulate_dtype", "activation_dtype", "rounded"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_BELOW_FLOAT32 = (1 << 29) - 1  # the bits of a float64 mantissa that a float32 does not hold


def activation_dtype(numerics: Numerics) -> torch.dtype:
    """What an activation output is rounded to."""
    return _DTYPES[numerics.activation]


def accumulate_dtype(numerics: Numerics) -> torch.dtype:
    """What sums, softmax and statistics are made in."""
    return _DTYPES[numerics.accumulate]


def rounded(x: torch.Tensor, numerics: Numerics) -> torch.Tensor:
    """x in the activation dtype, rounded once, half to even.

    torch casts float64 to bfloat16 through float32, which rounds twice: a value within 2^-25 of a
    bf16 tie rounds as the tie does. On the vectors of `long` (model.md §9) one such value changes
    a cache entry and with it 70 % of the rows of seven layers. So the bits a float32 cannot hold
    are first folded into its last one (rounding to odd), after which the way through float32 is
    exact.
    """
    dtype = _DTYPES[numerics.activation]
    if x.dtype == torch.float64 and dtype == torch.bfloat16:
        bits = x.view(torch.int64)
        sticky = (bits & _BELOW_FLOAT32).add_(_BELOW_FLOAT32)  # carries into bit 29 unless 0
        x = sticky.bitwise_or_(bits).bitwise_and_(~_BELOW_FLOAT32).view(torch.float64)
    return x.to(dtype)
