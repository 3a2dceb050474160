"""KV and index-key quantisers: e2m1 codes, two a byte, with a scale per 16 or 32 channels.

Source: model.md §2.1 (fp4_act_quant), §9 ("FP4-16 scales: divide by 6"). Block 32 has ue8m0
scales (index keys and queries), block 16 has e4m3 scales (compressed KV), which saturate at
`numerics.fp8_max`. Arithmetic is float32 whatever the dtype of x. Like quantise_fp8, these are
casts and act in every numerics.
"""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from references.number_formats import (
    decode_e2m1,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    encode_ue8m0,
    power_of_two_ceiling,
)
from references.operands import (
    refuse,
    require_codes,
    require_float,
    require_multiple,
    require_shape,
)
from references.precision import activation_dtype

__all__ = ["dequantise_fp4", "quantise_fp4"]

_E2M1_MAX = 6.0
_SIXTH = torch.tensor(1.0 / 6.0)  # rounded to fp32
_SMALLEST_AMAX = {32: 6.0 * 2.0**-126, 16: 6.0 * 2.0**-9}


def _require_block(op: str, block: int) -> None:
    if block not in _SMALLEST_AMAX:
        refuse(op, f"block is {block}: choose 32 (ue8m0 scales) or 16 (e4m3 scales)")


def _scale_bytes(amax: torch.Tensor, block: int, fp8_max: int) -> torch.Tensor:
    if block == 32:
        return encode_ue8m0(power_of_two_ceiling(amax * _SIXTH))
    return encode_e4m3(amax / _E2M1_MAX, fp8_max)


def _scale_values(scale: torch.Tensor, block: int) -> torch.Tensor:
    decode = decode_ue8m0 if block == 32 else decode_e4m3
    return decode(scale, torch.float32)


def quantise_fp4(
    x: torch.Tensor, block: int, *, numerics: Numerics
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] -> packed e2m1 bytes [..., K/2] and scale bytes [..., K/block].

    The even channel is in the low nibble.

    Raises:
        UsageError: x is not a float tensor, block is neither 16 nor 32, or does not divide K.
    """
    require_float("quantise_fp4", "x", x)
    _require_block("quantise_fp4", block)
    require_multiple("quantise_fp4", "K", x.shape[-1], block)
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // block, block)
    amax = blocks.abs().amax(-1).clamp(min=_SMALLEST_AMAX[block])
    scale = _scale_bytes(amax, block, numerics.fp8_max)
    scaled = blocks / _scale_values(scale, block).unsqueeze(-1)
    return encode_e2m1(scaled).flatten(-2), scale


def dequantise_fp4(
    codes: torch.Tensor, scale: torch.Tensor, block: int, *, numerics: Numerics
) -> torch.Tensor:
    """Packed bytes [..., K/2] and scale bytes [..., K/block] -> values [..., K] (activation dtype).

    Raises:
        UsageError: not bytes, unknown block, or shapes that do not meet.
    """
    require_codes("dequantise_fp4", "codes", codes)
    require_codes("dequantise_fp4", "scale", scale)
    _require_block("dequantise_fp4", block)
    channels = 2 * codes.shape[-1]
    require_multiple("dequantise_fp4", "K", channels, block)
    shape = (*codes.shape[:-1], channels // block)
    require_shape("dequantise_fp4", "scale", scale, shape)
    values = decode_e2m1(codes, torch.float32).reshape(*shape, block)
    scaled = values * _scale_values(scale, block).unsqueeze(-1)
    return scaled.flatten(-2).to(activation_dtype(numerics))
