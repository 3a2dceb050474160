"""Residual streams of one batch (model.md §2.3).

Legend: B sequences, S positions, m streams, d hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["collapsed", "expanded", "hyper_connection", "rms"]

_HC_EPS = 1e-6
_NORM_EPS = 1e-20


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last axis."""
    return weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + _NORM_EPS))


def collapsed(x_BSmd: Tensor, pre_BSm: Tensor) -> Tensor:
    """One row [B, S, d] of the streams."""
    return (pre_BSm[..., None] * x_BSmd).sum(2)


def expanded(y_BSd: Tensor, x_BSmd: Tensor, post_BSm: Tensor, mixing_BSmm: Tensor) -> Tensor:
    """A sublayer's output back in the streams, which the mixing matrix has mixed."""
    out = post_BSm[..., None] * y_BSd[:, :, None, :]
    for source in range(x_BSmd.shape[2]):
        out = out + mixing_BSmm[:, :, source, :, None] * x_BSmd[:, :, source, None, :]
    return out


def hyper_connection(
    x_BSmd: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """pre [B, S, m], post [B, S, m] and mixing matrix [B, S, source, destination]."""
    m = x_BSmd.shape[2]
    flat = x_BSmd.flatten(2)
    z = flat @ fn.T * torch.rsqrt((flat * flat).mean(-1, keepdim=True) + _NORM_EPS)
    pre = torch.sigmoid(z[..., :m] * scale[0] + base[:m]) + _HC_EPS
    post = 2 * torch.sigmoid(z[..., m : 2 * m] * scale[1] + base[m : 2 * m])
    # Entries first, tokens last: sums over matrices that lie innermost are slow.
    scores = (z[..., 2 * m :] * scale[2] + base[2 * m :]).flatten(0, 1).T.reshape(m, m, -1)
    mixing = torch.softmax(scores, 1) + _HC_EPS
    for step in range(2 * iterations - 1):
        mixing = mixing / (mixing.sum(step % 2, keepdim=True) + _HC_EPS)
    return pre, post, mixing.permute(2, 0, 1).reshape(*x_BSmd.shape[:2], m, m)
