"""The small number formats, by value and by byte: ue8m0, e4m3 (448 and 240) and e2m1.

Source: model.md §2.1 and §4.3; the 240 grid nki.md §3 (same bytes as e4m3fn up to 240, no more).
"""

from __future__ import annotations

import torch

__all__ = [
    "decode_e2m1",
    "decode_e4m3",
    "decode_ue8m0",
    "encode_e2m1",
    "encode_e4m3",
    "encode_ue8m0",
    "power_of_two_ceiling",
    "rounded_to_e4m3",
]

_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_nibbles = torch.tensor([*_E2M1_VALUES, *(-value for value in _E2M1_VALUES)], dtype=torch.float64)
_bytes = torch.arange(256)
# [256, 2]: both values of a packed byte, the even K index (low nibble) first.
_E2M1_PAIRS = torch.stack((_nibbles[_bytes & 15], _nibbles[_bytes >> 4]), dim=-1)

_UE8M0 = torch.ldexp(torch.ones(256, dtype=torch.float64), _bytes - 127)
_UE8M0[255] = torch.nan

_MANTISSA_MASK = 0x7FFFFF
_EXPONENT_MASK = 0x7F800000
_SMALLEST_NORMAL_E4M3 = 2.0**-6
# 1.5 * 2^23 steps of the grid, which has 2^3 a binade: a sum with it keeps whole steps only.
_ROUNDER_PER_BINADE = 1.5 * 2.0 ** (23 - 3)
# The cast of fewer values costs less than the calls that do without it.
_FEWEST_BY_ARITHMETIC = 1 << 13


def power_of_two_ceiling(t: torch.Tensor) -> torch.Tensor:
    """2^ceil(log2 t) of positive normal float32 numbers, exact, by their bits."""
    bits = t.view(torch.int32) + _MANTISSA_MASK
    return bits.bitwise_and_(~_MANTISSA_MASK).view(torch.float32)


def encode_ue8m0(scale: torch.Tensor) -> torch.Tensor:
    """Bytes of float32 powers of two."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def decode_ue8m0(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """2^(byte - 127); byte 255 is NaN."""
    return _UE8M0.to(dtype).to(scale.device)[scale.int()]


def encode_e4m3(values: torch.Tensor, fp8_max: int) -> torch.Tensor:
    """Bytes of float32 values, saturating at `fp8_max`, round half to even, NaN stays NaN.

    Up to 240 the bytes of IEEE e4m3 and of e4m3fn are the same.
    """
    limited = values.clamp(-float(fp8_max), float(fp8_max))
    return limited.to(torch.float8_e4m3fn).view(torch.uint8)


def rounded_to_e4m3(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 values of at most 448 on the e4m3 grid: the cast to it and to dtype, bit for bit.

    torch casts from e4m3 one value at a time; of many, additions do the same ten times faster.
    """
    if values.numel() < _FEWEST_BY_ARITHMETIC:
        return values.to(torch.float8_e4m3fn).to(dtype)
    binade = values.view(torch.int32).bitwise_and(_EXPONENT_MASK).view(torch.float32)
    rounder = binade.clamp_min_(_SMALLEST_NORMAL_E4M3).mul_(_ROUNDER_PER_BINADE)
    return values.add(rounder).sub_(rounder).copysign_(values).to(dtype)


def decode_e4m3(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values of e4m3fn bytes."""
    return codes.view(torch.float8_e4m3fn).to(dtype)


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Packed bytes of float32 values [..., K] -> [..., K/2], saturating at 6, ties to even."""
    size = values.abs().nan_to_num_(nan=_E2M1_VALUES[-1])
    # The grid's steps are 1/2 up to 2, 1 up to 4 and 2 up to 6; rounding each stretch half to even
    # counts its codes, and every tie falls on the even code (a search costs ten times as much).
    codes = (size.clamp(max=2.0) * 2.0).round_()
    codes += size.clamp(2.0, 4.0).round_() - 2.0
    codes += (size.clamp(4.0, 6.0) * 0.5).round_() - 2.0
    nibbles = codes.to(torch.uint8) | (torch.signbit(values).to(torch.uint8) << 3)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def decode_e2m1(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values of packed bytes [..., K/2] -> [..., K]."""
    pairs = _E2M1_PAIRS.to(dtype).to(codes.device).index_select(0, codes.int().flatten())
    return pairs.view(*codes.shape[:-1], 2 * codes.shape[-1])
