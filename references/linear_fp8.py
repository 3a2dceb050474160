"""Linear layer with a block-scaled fp8 weight.

Source: model.md §2.1 (linear dispatch). Where numerics.quantise is set x is rounded onto the fp8
grid per 32 channels first; the sum runs over dequantised values, which are exact in every dtype.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from references.operands import refuse, require_float, require_multiple, require_weight
from references.precision import product_dtype, rounded
from references.quantise_fp8 import rounded_to_fp8
from references.weight_forms import dequantised

__all__ = ["finished", "linear_fp8"]


def finished(op: str, sums: torch.Tensor, output: str, numerics: Numerics) -> torch.Tensor:
    """'activation' rounds, 'accumulate' leaves a sum unrounded.

    Raises:
        UsageError: any other word.
    """
    if output == "activation":
        return rounded(sums, numerics)
    if output != "accumulate":
        refuse(op, f"output is {output!r}: choose 'activation' or 'accumulate'")
    return sums


def linear_fp8(
    x: torch.Tensor, weight: QuantisedWeight, output: str, *, numerics: Numerics
) -> torch.Tensor:
    """y [T, N] = x [T, K] times weight [N, K]^T.

    Args:
        output: 'activation' or 'accumulate' (a partial sum of a sharded K, unrounded).

    Raises:
        UsageError: shapes that do not meet, K no multiple of 32, wrong dtype or layout.
    """
    require_float("linear_fp8", "x", x, ndim=2)
    require_weight("linear_fp8", weight, "fp8_block", x.shape[-1])
    require_multiple("linear_fp8", "K", x.shape[-1], 32)
    dtype = product_dtype(numerics, output)
    values = rounded_to_fp8(x, numerics.fp8_max, dtype) if numerics.quantise else x.to(dtype)
    sums = functional.linear(values, dequantised(weight, dtype, numerics.fp8_max))
    return finished("linear_fp8", sums, output, numerics)
