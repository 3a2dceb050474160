"""Matrices as (data, scales) pairs, the form the vendor faces take, in plain row-major layout.

Data is float8_e4m3fn [..., K], or int8/uint8 with two e2m1 codes a byte [..., K/2] (the even
channel in the low nibble). Scales are float32, float8_e8m0fnu or uint8 (ue8m0 bytes), one for
each `gran_mn` rows and `gran_k` channels. The TMA-aligned, MN-major and int32-packed CUDA layouts
are refused (port.md R1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from references.number_formats import (
    decode_e2m1,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    power_of_two_ceiling,
)
from references.operands import refuse, require, require_float, require_multiple, require_shape

__all__ = [
    "Granularity",
    "ScaledMatrix",
    "cast_back",
    "matrix_values",
    "num_channels",
    "per_block_cast",
    "per_token_cast",
    "scale_values",
]

ScaledMatrix = tuple[torch.Tensor, torch.Tensor]
Granularity = Sequence[int]

_FP8_MAX = 448.0
_FP4_MAX = 6.0
_SMALLEST_AMAX = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}


def num_channels(op: str, data: torch.Tensor) -> int:
    """K of a data tensor.

    Raises:
        UsageError: neither fp8 nor packed fp4.
    """
    if data.dtype == torch.float8_e4m3fn:
        return data.shape[-1]
    if data.dtype in (torch.int8, torch.uint8):
        return 2 * data.shape[-1]
    return refuse(op, f"data has dtype {data.dtype}: pass float8_e4m3fn or packed fp4 in int8")


def scale_values(op: str, scale: torch.Tensor) -> torch.Tensor:
    """Scales as float32.

    Raises:
        UsageError: int32-packed scales or another dtype.
    """
    if scale.dtype == torch.float32:
        return scale
    if scale.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return decode_ue8m0(scale.view(torch.uint8), torch.float32)
    return refuse(
        op, f"scales have dtype {scale.dtype}: pass float32 or ue8m0 bytes, row-major and unpacked"
    )


def matrix_values(op: str, matrix: ScaledMatrix, granularity: Granularity) -> torch.Tensor:
    """[..., M, K] float32 values of a (data, scales) pair.

    Raises:
        UsageError: wrong dtype, or scales whose shape does not follow from the granularity.
    """
    data, scale = matrix
    channels = num_channels(op, data)
    gran_mn, gran_k = granularity
    rows = data.shape[-2]
    shape = (*data.shape[:-2], -(-rows // gran_mn), -(-channels // gran_k))
    require_shape(op, "scales", scale, shape)
    factors = scale_values(op, scale).repeat_interleave(gran_k, dim=-1)[..., :channels]
    factors = factors.repeat_interleave(gran_mn, dim=-2)[..., :rows, :]
    if data.dtype == torch.float8_e4m3fn:
        return data.float() * factors
    return decode_e2m1(data.view(torch.uint8), torch.float32) * factors


def _scales(amax: torch.Tensor, fmt: str, power_of_two: bool) -> torch.Tensor:
    limit = _FP8_MAX if fmt == "e4m3" else _FP4_MAX
    scale = amax.clamp(min=_SMALLEST_AMAX[fmt]) * torch.tensor(1.0 / limit)
    return power_of_two_ceiling(scale) if power_of_two else scale


def _encoded(op: str, values: torch.Tensor, fmt: str) -> torch.Tensor:
    if fmt == "e4m3":
        return encode_e4m3(values, int(_FP8_MAX)).view(torch.float8_e4m3fn)
    require_multiple(op, "K", values.shape[-1], 2)
    return encode_e2m1(values).view(torch.int8)


def per_token_cast(
    op: str, x: torch.Tensor, fmt: str, gran_k: int, power_of_two: bool
) -> ScaledMatrix:
    """Data and float32 scales [M, ceil(K/gran_k)] of x [M, K].

    Raises:
        UsageError: fmt is neither "e4m3" nor "e2m1", x is not a float matrix.
    """
    require(fmt in _SMALLEST_AMAX, op, f"format is {fmt!r}: choose 'e4m3' or 'e2m1'")
    require_float(op, "x", x, ndim=2)
    rows, channels = x.shape
    padded = functional.pad(x.float(), (0, -channels % gran_k))
    blocks = padded.reshape(rows, padded.shape[1] // gran_k, gran_k)
    scale = _scales(blocks.abs().amax(-1), fmt, power_of_two)
    scaled = (blocks / scale.unsqueeze(-1)).reshape(rows, padded.shape[1])[:, :channels]
    return _encoded(op, scaled.contiguous(), fmt), scale


def per_block_cast(op: str, x: torch.Tensor, gran: int, power_of_two: bool) -> ScaledMatrix:
    """fp8 data and float32 scales [ceil(N/gran), ceil(K/gran)] of x [N, K].

    Raises:
        UsageError: x is not a float matrix.
    """
    require_float(op, "x", x, ndim=2)
    rows, channels = x.shape
    padded = functional.pad(x.float(), (0, -channels % gran, 0, -rows % gran))
    tiles = padded.reshape(padded.shape[0] // gran, gran, padded.shape[1] // gran, gran)
    scale = _scales(tiles.abs().amax((1, 3)), "e4m3", power_of_two)
    scaled = (tiles / scale[:, None, :, None]).reshape(padded.shape)[:rows, :channels]
    return _encoded(op, scaled.contiguous(), "e4m3"), scale


def cast_back(op: str, matrix: ScaledMatrix, granularity: Granularity) -> torch.Tensor:
    """bf16 values of a pair."""
    return matrix_values(op, matrix, granularity).bfloat16()
