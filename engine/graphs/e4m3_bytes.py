"""e4m3fn as bytes, by integer and float32 arithmetic: no tensor here has a float8 dtype.

Trainium2 graphs have no OCP e4m3fn (port.md R7). Both directions give torch's own bits: every
one of the 256 codes and every bf16 and float32 input, NaN and overflow included.
"""

from __future__ import annotations

import torch

__all__ = ["decode_e4m3_bytes", "encode_e4m3_bytes"]

_NAN = 0x7F
_SIGN = 0x80
_MANTISSA_BITS = 3
# float32 has 20 mantissa bits more and an exponent bias of 127 instead of 7.
_DROPPED_BITS = 23 - _MANTISSA_BITS
_REBIAS = (127 - 7) << _MANTISSA_BITS
_SMALLEST_NORMAL = 2.0**-6
_SUBNORMALS_PER_UNIT = 2.0**9
_LARGEST_BITS = 0x43E00000  # of 448.0


def encode_e4m3_bytes(x: torch.Tensor) -> torch.Tensor:
    """uint8 codes of float x of any shape, as x.to(torch.float8_e4m3fn) would round.

    Half to even; what is larger saturates at 448, infinities too; NaN stays NaN.
    """
    values = x.to(torch.float32)
    bits = values.view(torch.int32)
    magnitude = values.abs()
    below_half = (1 << (_DROPPED_BITS - 1)) - 1
    magnitude_bits = (bits & 0x7FFFFFFF).clamp(max=_LARGEST_BITS)
    to_even = (magnitude_bits >> _DROPPED_BITS) & 1
    normal = ((magnitude_bits + below_half + to_even) >> _DROPPED_BITS) - _REBIAS
    # Large values are cut first: float to int of what an int cannot hold is undefined.
    small = magnitude.clamp(max=_SMALLEST_NORMAL) * _SUBNORMALS_PER_UNIT
    subnormal = torch.round(torch.nan_to_num(small)).to(torch.int32)
    code = torch.where(magnitude < _SMALLEST_NORMAL, subnormal, normal)
    code = torch.where(torch.isnan(values), _NAN, code)
    sign = torch.where(bits < 0, _SIGN, 0)
    return (code | sign).to(torch.uint8)


def decode_e4m3_bytes(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values of uint8 codes, as codes.view(torch.float8_e4m3fn).to(dtype)."""
    wide = codes.to(torch.int32)
    magnitude = wide & _NAN
    normal = ((magnitude + _REBIAS) << _DROPPED_BITS).view(torch.float32)
    subnormal = magnitude.to(torch.float32) * (1 / _SUBNORMALS_PER_UNIT)
    value = torch.where(magnitude < (1 << _MANTISSA_BITS), subnormal, normal)
    value = torch.where(magnitude == _NAN, torch.nan, value)
    return torch.where(wide >= _SIGN, -value, value).to(dtype)
