"""Expert linears with packed fp4 weights, rows grouped by expert.

Source: model.md §2.8 and §4.3. Activations are rounded onto the fp8 grid (numerics.quantise), as
before every quantised linear. Experts without rows cost nothing.
"""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from references.operands import (
    require,
    require_float,
    require_ids,
    require_multiple,
    require_weight,
)
from references.precision import product_dtype, rounded
from references.quantise_fp8 import rounded_to_fp8
from references.weight_forms import dequantised

__all__ = ["linear_fp4_grouped"]


def linear_fp4_grouped(
    x: torch.Tensor,
    weight: QuantisedWeight,
    group_sizes: torch.Tensor,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """y [T, N]: group_sizes[e] consecutive rows of x [T, K] times weight[e] [N, K]^T.

    Raises:
        UsageError: group sizes negative or not adding up to T, shapes that do not meet, K no
            multiple of 32, wrong dtype or layout.
    """
    op = "linear_fp4_grouped"
    require_float(op, "x", x, ndim=2)
    require_weight(op, weight, "fp4", x.shape[-1])
    require_multiple(op, "K", x.shape[-1], 32)
    require_ids(op, "group_sizes", group_sizes, ndim=1)
    sizes = group_sizes.tolist()
    num_experts = weight.codes.shape[0]
    require(weight.codes.ndim == 3, op, "weight codes must be [E, N, K/2]")
    require(len(sizes) == num_experts, op, f"{len(sizes)} group sizes, {num_experts} experts")
    require(
        sum(sizes) == x.shape[0] and min(sizes, default=0) >= 0,
        op,
        f"group sizes {sizes} must be >= 0 and add up to the {x.shape[0]} rows",
    )
    dtype = product_dtype(numerics)
    values = rounded_to_fp8(x, numerics.fp8_max, dtype) if numerics.quantise else x.to(dtype)
    experts = dequantised(weight, dtype, numerics.fp8_max)
    sums = values.new_empty(x.shape[0], weight.out_features)
    first = 0
    for expert, size in enumerate(sizes):
        if size:
            last = first + size
            torch.mm(values[first:last], experts[expert].t(), out=sums[first:last])
            first = last
    return rounded(sums, numerics)
