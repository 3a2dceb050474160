"""Dequantised forms of a QuantisedWeight, built once and kept on the weight.

Trainium's e4m3 ends at 240 (nki.md §5.1, port.md R8), so on the 240 grid a weight is rescaled
first. The rule: a scale tile (32x32 of "fp8_block", one row's 32 channels of "fp8_row") that
holds a magnitude above 240 has every code halved, rounded half to even onto e4m3, and its ue8m0
scale doubled; a tile that fits keeps its bytes. Halving is exact but for 16 of the 254 finite
codes: the odd multiples of 2^-9 up to ±15 * 2^-9. FP4 weights need no rescaling.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.core.errors import UsageError
from harness.core.weights import QuantisedWeight
from references.number_formats import decode_e2m1, decode_e4m3, decode_ue8m0, encode_e4m3
from references.values import has_values

__all__ = ["dequantised", "expanded_scale", "rescaled_to_240"]

_TILE = 32
_LARGEST_SCALE_BYTE = 254


def dequantised(weight: QuantisedWeight, dtype: torch.dtype, fp8_max: int) -> torch.Tensor:
    """[..., N, K] values of a weight on the grid of `fp8_max`, kept under one key per form."""
    return weight.prepared(
        f"references/{dtype}/{fp8_max}", lambda raw: _dequantise(raw, dtype, fp8_max)
    )


def _dequantise(weight: QuantisedWeight, dtype: torch.dtype, fp8_max: int) -> torch.Tensor:
    _require_scale_shape(weight)
    if weight.layout == "fp4":
        values = decode_e2m1(weight.codes, dtype).reshape(*weight.scale.shape, _TILE)
        return (values * decode_ue8m0(weight.scale, dtype).unsqueeze(-1)).flatten(-2)
    codes, scale = weight.codes, weight.scale
    if fp8_max == 240:
        codes, scale = rescaled_to_240(codes, scale, weight.layout)
    factors = decode_ue8m0(expanded_scale(scale, codes.shape, weight.layout), dtype)
    return decode_e4m3(codes, dtype) * factors


def _require_scale_shape(weight: QuantisedWeight) -> None:
    *lead, rows, _ = weight.codes.shape
    scale_rows = -(-rows // _TILE) if weight.layout == "fp8_block" else rows
    expected = (*lead, scale_rows, -(-weight.in_features // _TILE))
    if tuple(weight.scale.shape) != expected:
        raise UsageError(
            f"weight of layout {weight.layout!r} with codes {tuple(weight.codes.shape)}: scale has "
            f"shape {tuple(weight.scale.shape)}, it must be {expected}"
        )


def expanded_scale(scale: torch.Tensor, shape: torch.Size, layout: str) -> torch.Tensor:
    """Scale bytes or a tile mask, repeated to the shape of the codes."""
    full = scale.repeat_interleave(_TILE, dim=-1)
    if layout == "fp8_block":
        full = full.repeat_interleave(_TILE, dim=-2)
    return full[..., : shape[-2], : shape[-1]]


def rescaled_to_240(
    codes: torch.Tensor, scale: torch.Tensor, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of an fp8 weight on the 240 grid, by the rule above.

    Raises:
        UsageError: a scale that must double is already the largest, 2^127.
    """
    values = decode_e4m3(codes, torch.float32)
    too_large = _tile_maxima(values.abs(), layout) > 240.0
    # A graph looks at no value: there the doubled scale is the byte of NaN, which logits show.
    if has_values(scale) and bool((too_large & (scale >= _LARGEST_SCALE_BYTE)).any()):
        raise UsageError("weight: a scale of 2^127 cannot be doubled for the 240 grid")
    halved = encode_e4m3(values * 0.5, 240)
    codes = torch.where(expanded_scale(too_large, codes.shape, layout), halved, codes)
    return codes, scale + too_large.to(torch.uint8)


def _tile_maxima(magnitudes: torch.Tensor, layout: str) -> torch.Tensor:
    rows, columns = magnitudes.shape[-2:]
    row_tile = _TILE if layout == "fp8_block" else 1
    padded = functional.pad(magnitudes, (0, -columns % _TILE, 0, -rows % row_tile))
    tiles = padded.reshape(
        *magnitudes.shape[:-2], -(-rows // row_tile), row_tile, -(-columns // _TILE), _TILE
    )
    return tiles.amax((-3, -1))
