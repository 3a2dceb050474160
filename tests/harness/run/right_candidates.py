"""Ops written again, in other orders of summation than the references': all must pass."""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight

__all__ = ["RIGHT"]

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
BF16, F32 = torch.bfloat16, torch.float32


def e4m3(codes: torch.Tensor) -> torch.Tensor:
    """Values of e4m3fn bytes, by arithmetic on their fields."""
    c = codes.to(torch.int64)
    exponent, mantissa = (c >> 3) & 15, c & 7
    normal = (1 + mantissa / 8) * torch.exp2((exponent - 7).float())
    value = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    return torch.where(c >= 128, -value, value)


def ue8m0(scale: torch.Tensor) -> torch.Tensor:
    return torch.exp2(scale.to(F32) - 127)


def e2m1(codes: torch.Tensor) -> torch.Tensor:
    """[..., K/2] bytes -> [..., K] values, the even index in the low nibble."""
    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
    return torch.where(nibbles >= 8, -E2M1[nibbles & 7], E2M1[nibbles & 7])


def spread_tiles(scale: torch.Tensor, N: int, K: int) -> torch.Tensor:
    return ue8m0(scale).repeat_interleave(32, 0)[:N].repeat_interleave(32, 1)[:, :K]


def fp8_values(weight: QuantisedWeight, fp8_max: int = 448) -> torch.Tensor:
    """[N, K]; on the 240 grid a tile with larger codes loses its odd multiples of 2^-9."""
    N, K = weight.codes.shape
    values = e4m3(weight.codes)
    if fp8_max == 240:
        halved = torch.where(values.abs() < 2.0**-5, (values * 256).round() / 256, values)
        for row in range(0, N, 32):
            for column in range(0, K, 32):
                tile = (slice(row, row + 32), slice(column, column + 32))
                if values[tile].abs().max() > 240:
                    values[tile] = halved[tile]
    return values * spread_tiles(weight.scale, N, K)


def quantised_blocks(x: torch.Tensor, fp8_max: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Per 32 channels: values on the e4m3 grid divided by scale, and the scales."""
    blocks = x.float().unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    mantissa, exponent = torch.frexp(amax * torch.tensor(1.0 / fp8_max))
    scale = torch.exp2(exponent.float() - (mantissa == 0.5).float())
    scaled = (blocks / scale).clamp(-fp8_max, fp8_max)
    return scaled.to(torch.float8_e4m3fn).float(), scale


def rms_norm(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> torch.Tensor:
    wide = x.float()
    total = wide.flip(1).square().cumsum(1)[:, -1:]
    return (wide * (total / x.shape[1] + eps).rsqrt() * weight.float()).to(x.dtype)


def rope(x: Any, cos: Any, sin: Any, *, numerics: Numerics) -> torch.Tensor:
    out, half = x.float().clone(), cos.shape[1]
    lead = [slice(None)] + [None] * (x.dim() - 2)
    tail = x.float()[..., -2 * half :]
    a, b = tail[..., 0::2], tail[..., 1::2]
    c, s = cos[tuple(lead)], sin[tuple(lead)]
    out[..., -2 * half :: 2] = a * c - b * s
    out[..., -2 * half + 1 :: 2] = a * s + b * c
    return out.to(x.dtype)


def quantise_fp8(x: Any, *, numerics: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
    values, scale = quantised_blocks(x, numerics.fp8_max)
    codes = values.to(torch.float8_e4m3fn).view(torch.uint8).flatten(-2)
    return codes, (scale.squeeze(-1).log2() + 127).round().to(torch.uint8)


def linear_fp8(x: Any, weight: Any, output: str, *, numerics: Numerics) -> torch.Tensor:
    values, scale = quantised_blocks(x, numerics.fp8_max)
    blocks, dense = (values * scale).unbind(1), fp8_values(weight, numerics.fp8_max)
    parts = [b @ w.T for b, w in zip(blocks, dense.split(32, 1), strict=True)]
    total = torch.stack(parts[::-1]).cumsum(0)[-1]
    return total.to(BF16 if output == "activation" else F32)


def linear_fp4_grouped(x: Any, weight: Any, sizes: Any, *, numerics: Numerics) -> torch.Tensor:
    values, scale = quantised_blocks(x, numerics.fp8_max)
    rows = (values * scale).flatten(-2)
    expert = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    dense = e2m1(weight.codes) * ue8m0(weight.scale).repeat_interleave(32, -1)
    return (dense[expert] * rows[:, None, :]).flip(-1).sum(-1).to(BF16)


def swiglu(
    gate: Any, up: Any, limit: float, route_weight: Any, *, numerics: Numerics
) -> torch.Tensor:
    g, u = gate.float().clamp(max=limit), up.float().clamp(-limit, limit)
    weight = 1.0 if route_weight is None else route_weight[:, None]
    return (g / (1 + torch.exp(-g)) * u * weight).to(gate.dtype)


def router(
    x: Any,
    weight: Any,
    bias: Any,
    top_k: int,
    route_scale: float,
    gate_temp: float,
    normalise: bool,
    *,
    numerics: Numerics,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = (x.float()[:, None, :] * weight.float()).flip(-1).sum(-1) / gate_temp
    scores = torch.nn.functional.softplus(logits).sqrt()
    left = scores + bias
    ids = []
    for _ in range(top_k):
        ids.append(left.argmax(1))
        left = left.scatter(1, ids[-1][:, None], -1e9)
    chosen = torch.stack(ids[::-1], 1)  # any order of a selection is a right one
    weights = scores.gather(1, chosen)
    if normalise and top_k > 1:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return chosen, weights * route_scale


def sparse_attention(
    q: Any, kv: Any, indices: Any, sink: Any, scale: float, *, numerics: Numerics
) -> torch.Tensor:
    """Online softmax over tiles of four keys."""
    T, H, D = q.shape
    top, total = torch.full((T, H), -1e30), torch.zeros(T, H)
    acc = torch.zeros(T, H, D)
    for tile in indices.split(4, 1):
        keys = kv.float()[tile.clamp(min=0)]
        scores = torch.einsum("thd,tmd->thm", q.float(), keys) * scale
        scores = scores.masked_fill((tile < 0)[:, None, :], float("-inf"))
        new_top = torch.maximum(top, scores.amax(-1))
        shrink, p = torch.exp(top - new_top), torch.exp(scores - new_top[..., None])
        total = total * shrink + p.sum(-1)
        acc = acc * shrink[..., None] + torch.einsum("thm,tmd->thd", p, keys)
        top = new_top
    total = total + torch.exp((sink.float() - top).clamp(max=80.0))
    return (acc / total[..., None]).to(q.dtype)


def index_scores(q: Any, keys: Any, head_weights: Any, *, numerics: Numerics) -> torch.Tensor:
    total = torch.zeros(q.shape[0], keys.shape[0])
    for head in reversed(range(q.shape[1])):
        total += head_weights[:, head, None] * (q[:, head].float() @ keys.float().T).relu()
    return total


def topk_positions(
    scores: Any, num_visible: Any, top_k: int, candidates: Any, *, numerics: Numerics
) -> torch.Tensor:
    rows = []
    for row in range(scores.shape[0]):
        able = [
            (-float(scores[row, i]), i)
            for i in range(int(num_visible[row]))
            if candidates is None or candidates[row, i]
        ]
        best = sorted(i for _, i in sorted(able)[:top_k])
        width = min(top_k, scores.shape[1])
        rows.append(best + [-1] * (width - len(best)))
    return torch.tensor(rows)


def hc_expand(y: Any, streams: Any, post: Any, comb: Any, *, numerics: Numerics) -> torch.Tensor:
    out = post[..., None] * y.float()[:, None, :]
    for source in range(streams.shape[1]):
        out = out + comb[:, source, :, None] * streams[:, source, None, :].float()
    return out.to(y.dtype)


def vocab_argmax(logits: Any, *, numerics: Numerics) -> torch.Tensor:
    is_best = logits == logits.amax(1, keepdim=True)
    positions = torch.arange(logits.shape[1]).expand_as(logits)
    return torch.where(is_best, positions, logits.shape[1]).amin(1)


RIGHT = {
    op.__name__: op
    for op in (
        rms_norm,
        rope,
        quantise_fp8,
        linear_fp8,
        linear_fp4_grouped,
        swiglu,
        router,
        sparse_attention,
        index_scores,
        topk_positions,
        hc_expand,
        vocab_argmax,
    )
}
