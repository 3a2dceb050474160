"""Grouped first half of the attention output projection (model.md §2.4)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from references.operands import require_float, require_multiple, require_weight
from references.precision import accumulate_dtype
from references.weight_forms import dequantised

__all__ = ["output_projection"]


def output_projection(
    o: torch.Tensor, weight: QuantisedWeight, groups: int, *, numerics: Numerics
) -> torch.Tensor:
    """u [T, G, L]: group g's heads, concatenated, times its rows of weight [G*L, (H/G)*D].

    No activation quantisation: the official code multiplies a bf16 copy of this weight. The sum
    stays unrounded, because a rank may hold only part of a group.

    Raises:
        UsageError: groups that do not divide heads or rows, shapes that do not meet.
    """
    require_float("output_projection", "o", o, ndim=3)
    num_rows, num_heads, head_dim = o.shape
    require_multiple("output_projection", "number of heads", num_heads, groups)
    group_width = num_heads // groups * head_dim
    require_weight("output_projection", weight, "fp8_block", group_width)
    require_multiple("output_projection", "weight rows", weight.out_features, groups)
    acc = accumulate_dtype(numerics)
    by_group = o.to(acc).reshape(num_rows, groups, group_width).transpose(0, 1)
    matrices = dequantised(weight, acc, numerics.fp8_max).view(groups, -1, group_width)
    return torch.bmm(by_group, matrices.transpose(1, 2)).transpose(0, 1)
