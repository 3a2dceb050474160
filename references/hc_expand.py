"""Hyper-connections: a sublayer's output back into the residual streams (model.md §2.3)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require_float, require_shape
from references.precision import accumulate_dtype, rounded

__all__ = ["hc_expand"]


def hc_expand(
    y: torch.Tensor,
    streams: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """out_k = post_k * y + sum over j of comb[j, k] * streams_j, one rounding.

    y [T, d], streams [T, m, d], post [T, m], comb [T, m (source), m (destination)].

    Raises:
        UsageError: shapes that do not meet, no float tensors.
    """
    op = "hc_expand"
    require_float(op, "streams", streams, ndim=3)
    num_rows, m, width = streams.shape
    for name, tensor, shape in (
        ("y", y, (num_rows, width)),
        ("post", post, (num_rows, m)),
        ("comb", comb, (num_rows, m, m)),
    ):
        require_float(op, name, tensor)
        require_shape(op, name, tensor, shape)
    acc = accumulate_dtype(numerics)
    added = post.to(acc).unsqueeze(-1) * y.to(acc).unsqueeze(1)
    out = torch.baddbmm(added, comb.to(acc).transpose(1, 2), streams.to(acc))
    return rounded(out, numerics)
