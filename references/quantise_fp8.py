"""Activation and KV quantiser: e4m3 codes with one power-of-two scale per 32 channels.

Source: model.md §2.1 (act_quant). All arithmetic is float32, as in the official code, whatever
the dtype of x: amax, then max(amax, 1e-4) * fl32(1/fp8_max) rounded up to a power of two. On the
240 grid (nki.md §5.1) scale and clamp are made against 240. These two ops are casts: they act in
every numerics, also in `exact`, where an engine does not call them.
"""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.number_formats import (
    decode_e4m3,
    decode_ue8m0,
    encode_e4m3,
    encode_ue8m0,
    power_of_two_ceiling,
    rounded_to_e4m3,
)
from references.operands import require_codes, require_float, require_multiple, require_shape
from references.precision import activation_dtype

__all__ = ["dequantise_fp8", "quantise_fp8", "rounded_to_fp8"]

BLOCK = 32
_SMALLEST_AMAX = 1e-4
_RECIPROCAL = {448: torch.tensor(1.0 / 448.0), 240: torch.tensor(1.0 / 240.0)}  # rounded to fp32


def _blocks_and_scale(x: torch.Tensor, fp8_max: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 blocks [..., K/32, 32] and their power-of-two scales [..., K/32, 1]."""
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True).clamp_min_(_SMALLEST_AMAX)
    return blocks, power_of_two_ceiling(amax.mul_(_RECIPROCAL[fp8_max]))


def quantise_fp8(x: torch.Tensor, *, numerics: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] -> e4m3 bytes [..., K] and ue8m0 bytes [..., K/32].

    Raises:
        UsageError: x is not a float tensor or K is no multiple of 32.
    """
    require_float("quantise_fp8", "x", x)
    require_multiple("quantise_fp8", "K", x.shape[-1], BLOCK)
    blocks, scale = _blocks_and_scale(x, numerics.fp8_max)
    codes = encode_e4m3(blocks / scale, numerics.fp8_max)
    return codes.flatten(-2), encode_ue8m0(scale.squeeze(-1))


def dequantise_fp8(codes: torch.Tensor, scale: torch.Tensor, *, numerics: Numerics) -> torch.Tensor:
    """e4m3 bytes [..., K] and ue8m0 bytes [..., K/32] -> values [..., K] (activation dtype).

    Raises:
        UsageError: not bytes, K no multiple of 32, or scale of another shape.
    """
    require_codes("dequantise_fp8", "codes", codes)
    require_codes("dequantise_fp8", "scale", scale)
    require_multiple("dequantise_fp8", "K", codes.shape[-1], BLOCK)
    shape = (*codes.shape[:-1], codes.shape[-1] // BLOCK)
    require_shape("dequantise_fp8", "scale", scale, shape)
    values = decode_e4m3(codes, torch.float32).reshape(*shape, BLOCK)
    scaled = values * decode_ue8m0(scale, torch.float32).unsqueeze(-1)
    return scaled.flatten(-2).to(activation_dtype(numerics))


def rounded_to_fp8(x: torch.Tensor, fp8_max: int, dtype: torch.dtype) -> torch.Tensor:
    """x [..., K] on the fp8 grid, as values: what a quantised linear multiplies.

    The product code * scale has at most 4 significant bits, so it is exact in every dtype here.
    """
    blocks, scale = _blocks_and_scale(x, fp8_max)
    # The scale is at least amax / fp8_max, but for one float32 rounding that the cast swallows:
    # no clamp is needed here. x / scale is exact up to that cast.
    on_grid = rounded_to_e4m3(blocks / scale, dtype).mul_(scale)
    return on_grid.reshape(x.shape)
