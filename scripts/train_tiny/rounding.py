"""Straight-through rounding: the forward sees stored values, the gradient passes unchanged.

Quantisers as in model.md §2.1 (activations) and §4.3 (weights).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FORMS", "as_stored", "bf16", "fp4_index", "fp4_kv", "fp8_activations"]

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1_BORDERS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_TABLE_EXPONENT = -4  # one scale for all rows of the Engram table; the encoder gets the same

FORMS = ("fp8", "fp4", "fp8_rows", "bf16", "f32")


def _straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    return x + (rounded - x).detach()


def bf16(x: Tensor) -> Tensor:
    """Nearest bf16."""
    return _straight_through(x, x.detach().to(torch.bfloat16).to(x.dtype))


def as_stored(weight: Tensor, form: str) -> Tensor:
    """A parameter as its form in the files holds it; [..., N, K] for fp8 and fp4."""
    with torch.no_grad():
        if form == "fp8":
            rounded = _fp8_tiles(weight)
        elif form == "fp4":
            rounded = _by_block(weight, 32, _pow2_fp4)
        elif form == "fp8_rows":
            scale = 2.0**_TABLE_EXPONENT
            rounded = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        elif form == "bf16":
            rounded = weight.to(torch.bfloat16)
        else:
            return weight
        rounded = rounded.to(weight.dtype)
    return _straight_through(weight, rounded)


def fp8_activations(x: Tensor) -> Tensor:
    """e4m3 with a power-of-two scale per 32 channels."""
    with torch.no_grad():
        rounded = _by_block(x, 32, _pow2_fp8)
    return _straight_through(x, rounded)


def fp4_index(x: Tensor) -> Tensor:
    """e2m1 with a power-of-two scale per 32 channels."""
    with torch.no_grad():
        rounded = _by_block(x, 32, _pow2_fp4)
    return _straight_through(x, rounded)


def fp4_kv(x: Tensor) -> Tensor:
    """e2m1 with an e4m3 scale per 16 channels."""
    with torch.no_grad():
        rounded = _by_block(x, 16, _e4m3_fp4)
    return _straight_through(x, rounded)


def _by_block(x: Tensor, size: int, rounder: object) -> Tensor:
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    amax = blocks.abs().amax(-1, keepdim=True)
    assert callable(rounder)
    rounded: Tensor = rounder(blocks, amax)
    return rounded.reshape(x.shape)


def _fp8_tiles(weight: Tensor) -> Tensor:
    rows, columns = weight.shape
    tiles = weight.reshape(rows // 32, 32, columns // 32, 32)
    amax = tiles.abs().amax((1, 3), keepdim=True)
    return _pow2_fp8(tiles, amax).reshape(weight.shape)


def _pow2_fp8(x: Tensor, amax: Tensor) -> Tensor:
    scale = _pow2_ceil(amax.clamp(min=1e-4) / 448)
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * scale


def _pow2_fp4(x: Tensor, amax: Tensor) -> Tensor:
    scale = _pow2_ceil(amax.clamp(min=6 * 2.0**-126) / 6)
    return _e2m1(x / scale) * scale


def _e4m3_fp4(x: Tensor, amax: Tensor) -> Tensor:
    scale = (amax.clamp(min=6 * 2.0**-9) / 6).clamp(max=448)
    scale = scale.to(torch.float8_e4m3fn).to(x.dtype)
    return _e2m1(x / scale) * scale


def _pow2_ceil(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    return torch.ldexp(torch.ones_like(x), exponent)


def _e2m1(x: Tensor) -> Tensor:
    """Nearest e2m1 value. A tie's direction is of no importance in training."""
    codes = torch.bucketize(x.abs(), _E2M1_BORDERS.to(x.dtype))
    return _E2M1.to(x.dtype)[codes] * x.sign()
