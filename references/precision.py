"""From a Numerics to torch dtypes, and the one rounding of an op's output."""

from __future__ import annotations

from functools import lru_cache

import torch

from harness.core.numerics import Numerics

__all__ = ["accumulate_dtype", "activation_dtype", "product_dtype", "rounded"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_BELOW_FLOAT32 = (1 << 29) - 1  # the bits of a float64 mantissa that a float32 does not hold


def activation_dtype(numerics: Numerics) -> torch.dtype:
    """What an activation output is rounded to."""
    return _DTYPES[numerics.activation]


def accumulate_dtype(numerics: Numerics) -> torch.dtype:
    """What sums, softmax and statistics are made in."""
    return _DTYPES[numerics.accumulate]


def product_dtype(numerics: Numerics, output: str = "activation") -> torch.dtype:
    """What the operands of a matrix product are held in.

    Quantised values have few bits and are exact in bfloat16 too. Where sums are float32, the
    result is rounded to bfloat16 anyway and the CPU multiplies bfloat16 pairs (float32 sums, one
    rounding), bfloat16 operands give the same numbers for half the memory traffic.
    """
    coarse = numerics.activation == "bfloat16" and numerics.accumulate == "float32"
    if coarse and output == "activation" and _multiplies_bfloat16():
        return torch.bfloat16
    return _DTYPES[numerics.accumulate]


@lru_cache(maxsize=1)
def _multiplies_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported()


def rounded(x: torch.Tensor, numerics: Numerics) -> torch.Tensor:
    """x in the activation dtype, rounded once, half to even.

    torch casts float64 to bfloat16 through float32, which rounds twice: a value within 2^-25 of a
    bf16 tie rounds as the tie does. On the vectors of `long` (model.md §9) one such value changes
    a cache entry and with it 70 % of the rows of seven layers. So the bits a float32 cannot hold
    are first folded into its last one (rounding to odd), after which the way through float32 is
    exact.
    """
    dtype = _DTYPES[numerics.activation]
    if x.dtype == dtype:  # a cast to the same dtype costs a call all the same
        return x
    if x.dtype == torch.float64 and dtype == torch.bfloat16:
        bits = x.view(torch.int64)
        sticky = (bits & _BELOW_FLOAT32).add_(_BELOW_FLOAT32)  # carries into bit 29 unless 0
        x = sticky.bitwise_or_(bits).bitwise_and_(~_BELOW_FLOAT32).view(torch.float64)
    return x.to(dtype)
