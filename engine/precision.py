"""torch dtypes of a numerics mode."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics

__all__ = ["accumulate_dtype", "activation_dtype", "parameter_dtype"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


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
