"""Row-wise formulas without weights of their own (model.md §2.1, §2.3, §2.4)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from references.oracle.arithmetic import Arithmetic
from references.oracle.checkpoint import Floats

__all__ = [
    "grouped_output",
    "hyper_connection",
    "masked_attention",
    "rms",
    "rope",
    "rope_frequencies",
    "stable_best",
]

Yarn = tuple[float, float, float, int]


def rms(x: Floats, weight: Floats, eps: float) -> Floats:
    """weight * x / sqrt(mean(x^2) + eps) over the last axis."""
    mean_square = (x * x).mean(-1, keepdims=True)
    result: Floats = weight * (x / np.sqrt(mean_square + x.dtype.type(eps)))
    return result


def rope_frequencies(rope_dim: int, base: float, yarn: Yarn | None) -> npt.NDArray[np.float64]:
    """Angle per position of each pair; yarn = (factor, beta_fast, beta_slow, original length)."""
    frequencies = np.array([base ** (-2 * i / rope_dim) for i in range(rope_dim // 2)])
    if yarn is None:
        return frequencies
    factor, beta_fast, beta_slow, original = yarn

    def correction(rotations: float) -> float:
        return rope_dim * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(base))

    low = max(math.floor(correction(beta_fast)), 0)
    high = min(math.ceil(correction(beta_slow)), rope_dim - 1)
    ramp = np.clip((np.arange(rope_dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return frequencies / factor * ramp + frequencies * (1 - ramp)


def rope(
    x: Floats, positions: npt.NDArray[np.int64], rope_dim: int, base: float, yarn: Yarn | None
) -> Floats:
    """x [S, ..., D] with the last rope_dim channels turned as complex numbers."""
    angles = positions[:, None] * rope_frequencies(rope_dim, base, yarn)
    turn = np.exp(1j * angles).reshape(len(x), *(1,) * (x.ndim - 2), rope_dim // 2)
    tail = x[..., -rope_dim:].astype(np.float64)
    turned = (tail[..., 0::2] + 1j * tail[..., 1::2]) * turn
    result = x.copy()
    result[..., -rope_dim::2] = turned.real
    result[..., x.shape[-1] - rope_dim + 1 :: 2] = turned.imag
    return result


def masked_attention(
    a: Arithmetic,
    q: Floats,
    keys: Floats,
    mask: npt.NDArray[np.bool_],
    sink: Floats,
    scale: float,
) -> Floats:
    """o [S, H, D]: softmax over the keys [n, D] that mask [S, n] shows, plus a sink per head."""
    scores = np.einsum("shd,nd->shn", q, keys, optimize=True) * a.dtype(scale)
    scores = np.where(mask[:, None, :], scores, -np.inf)
    largest = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), a.dtype(-1e30))
    weights = np.exp(scores - largest)
    denominator = weights.sum(-1, keepdims=True) + np.exp(sink[:, None] - largest)
    summed = np.einsum("shn,nd->shd", a.act(weights), keys, optimize=True)
    return a.act(summed / denominator)


def grouped_output(o: Floats, wo_a: Floats, groups: int) -> Floats:
    """concat over g of wo_a[g] times the heads of group g: [S, H, D] -> [S, G*L]."""
    inputs = np.split(o.reshape(len(o), -1), groups, axis=1)
    matrices = np.split(wo_a, groups, axis=0)
    return np.concatenate([x @ w.T for x, w in zip(inputs, matrices, strict=True)], axis=1)


def stable_best(scores: Floats, count: int) -> npt.NDArray[np.bool_]:
    """Mask of the `count` largest finite scores of a row (or +inf); ties to the lower index."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    mask = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(mask, order, True, axis=1)
    return mask & (scores > -np.inf)


def hyper_connection(
    streams: Floats,
    fn: Floats,
    base: Floats,
    scale: Floats,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Floats, Floats, Floats]:
    """pre [S, m], post [S, m], mixing C [S, source, destination] of streams [S, m, d]."""
    m = streams.shape[1]
    flat = streams.reshape(len(streams), -1)
    z = (flat @ fn.T) / np.sqrt((flat * flat).mean(1, keepdims=True) + flat.dtype.type(norm_eps))
    pre = _sigmoid(z[:, :m] * scale[0] + base[:m]) + eps
    post = 2 * _sigmoid(z[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    logits = (z[:, 2 * m :] * scale[2] + base[2 * m :]).reshape(-1, m, m)
    mixing: Any = np.exp(logits - logits.max(2, keepdims=True))
    mixing = mixing / mixing.sum(2, keepdims=True) + eps
    for step in range(2 * iterations - 1):
        axis = 1 if step % 2 == 0 else 2
        mixing = mixing / (mixing.sum(axis, keepdims=True) + eps)
    return pre, post, mixing


def _sigmoid(z: Floats) -> Floats:
    result: Floats = 1 / (1 + np.exp(-z))
    return result
