"""From a Numerics to torch dtypes: the only two places where an op casts."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics

__all__ = ["accumulate_dtype", "activation_dtype"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def activation_dtype(numerics: Numerics) -> torch.dtype:
    """What an activation output is rounded to.

    A float64 value reaches bfloat16 through float32 (torch's cast), as it does in the official
    code, whose sums are float32: a value within 2^-25 of a bf16 tie may round as the tie does.
    """
    return _DTYPES[numerics.activation]


def accumulate_dtype(numerics: Numerics) -> torch.dtype:
    """What sums, softmax and statistics are made in."""
    return _DTYPES[numerics.accumulate]
