"""torch dtypes of a numerics mode."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics

__all__ = ["accumulate_dtype", "activation_dtype", "parameter_dtype", "rounded"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
# Mantissa bits of a float64 that a float32 has no room for, and the float32's last bit.
_DROPPED_BITS = (1 << 29) - 1
_LAST_BIT = 29


def activation_dtype(numerics: Numerics) -> torch.dtype:
    """What activations and caches are held in."""
    return _DTYPES[numerics.activation]


def accumulate_dtype(numerics: Numerics) -> torch.dtype:
    """What sums, scores, coefficients and logits are held in."""
    return _DTYPES[numerics.accumulate]


def parameter_dtype(numerics: Numerics) -> torch.dtype | None:
    """What bf16 and fp32 parameters are widened to at load; None keeps the stored dtype.

    fp64 modes would otherwise widen them in every call.
    """
    return torch.float64 if numerics.accumulate == "float64" else None


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x in `dtype`, rounded once, half to even.

    torch takes float64 to bfloat16 by way of float32, which rounds twice and moves values near
    a tie. Truncating to float32 with the last bit set where anything was cut off keeps such a
    value on its side of the tie, so the second rounding decides alone.
    """
    if x.dtype == torch.float64 and dtype == torch.bfloat16:
        bits = x.contiguous().view(torch.int64)
        was_cut = (bits & _DROPPED_BITS).ne(0).to(torch.int64) << _LAST_BIT
        x = ((bits & ~_DROPPED_BITS) | was_cut).view(torch.float64)
    return x.to(dtype)
