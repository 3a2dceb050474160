"""Engram gate: how much of the looked-up value each residual stream takes (model.md §2.9)."""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.operands import require_float, require_shape
from references.precision import accumulate_dtype, rounded

__all__ = ["engram_gate"]

_SMALLEST_DOT = 1e-6


def engram_gate(
    streams: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """streams_j + sigmoid(copysign(sqrt(max(|dot_j|, 1e-6)), dot_j)) * value, one rounding.

    dot_j = sum_c x_jc * q_weight_jc * k_weight_jc * key_jc, times the inverse RMS of stream and
    key, times d^-1/2. streams and key [T, m, d], value [T, d], weights [m, d].

    Raises:
        UsageError: shapes that do not meet, no float tensors.
    """
    op = "engram_gate"
    require_float(op, "streams", streams, ndim=3)
    num_rows, m, width = streams.shape
    for name, tensor, shape in (
        ("key", key, (num_rows, m, width)),
        ("value", value, (num_rows, width)),
        ("q_weight", q_weight, (m, width)),
        ("k_weight", k_weight, (m, width)),
    ):
        require_float(op, name, tensor)
        require_shape(op, name, tensor, shape)
    acc = accumulate_dtype(numerics)
    x, k = streams.to(acc), key.to(acc)
    omega = q_weight.to(acc) * k_weight.to(acc)
    inverse_rms = torch.rsqrt(torch.linalg.vecdot(x, x) / width + eps)
    inverse_rms = inverse_rms * torch.rsqrt(torch.linalg.vecdot(k, k) / width + eps)
    dot = torch.linalg.vecdot(x * omega, k) * inverse_rms * width**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=_SMALLEST_DOT).sqrt(), dot))
    out = x + gate.unsqueeze(-1) * value.to(acc).unsqueeze(1)
    return rounded(out, numerics)
