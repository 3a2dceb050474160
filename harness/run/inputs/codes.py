"""Random quantised weights and codes: every bit pattern but NaN, scales of a sensible range."""

from __future__ import annotations

import torch

from harness.core.weights import QuantisedWeight
from harness.run.inputs.draw import Draw

__all__ = ["fp4_weight", "fp8_block_weight", "fp8_codes", "fp8_row_table", "ue8m0_scales"]

_TILE = 32
# Uniform e4m3 bytes have an RMS near 2^7, uniform e2m1 codes near 2^1.5: these centres give
# dequantised weights of about 1/16, so that outputs stay of order one.
_FP8_SCALE_CENTRE = 127 - 11
_FP4_SCALE_CENTRE = 127 - 5


def ue8m0_scales(draw: Draw, *shape: int, centre: int) -> torch.Tensor:
    """uint8 exponents. Neighbours differ, so that taking the wrong one shows."""
    width = 12 if draw.family == "extremes" else 2
    return draw.integers(centre - width, centre + width + 1, *shape).to(torch.uint8)


def fp8_codes(draw: Draw, *shape: int, largest: int = 0x7E) -> torch.Tensor:
    """uint8 e4m3 bytes of both signs, magnitudes 0..largest: NaN (0x7f, 0xff) never occurs."""
    magnitude = draw.integers(0, largest + 1, *shape)
    sign = draw.integers(0, 2, *shape)
    return (magnitude + 128 * sign).to(torch.uint8)


def fp8_block_weight(draw: Draw, N: int, K: int) -> QuantisedWeight:
    """[N, K] with one scale a 32x32 tile; in "zero_block" a third of the tiles is zero."""
    tiles = (-(-N // _TILE), -(-K // _TILE))
    codes = fp8_codes(draw, N, K)
    if draw.family == "zero_block":
        rows = torch.arange(N).view(-1, 1) // _TILE
        columns = torch.arange(K).view(1, -1) // _TILE
        codes[(rows + columns) % 3 == 0] = 0
    return QuantisedWeight(codes, ue8m0_scales(draw, *tiles, centre=_FP8_SCALE_CENTRE), "fp8_block")


def fp8_row_table(draw: Draw, rows: int, W: int) -> QuantisedWeight:
    """[rows, W] with one scale a row and 32 channels."""
    codes = fp8_codes(draw, rows, W)
    scale = ue8m0_scales(draw, rows, W // _TILE, centre=_FP8_SCALE_CENTRE)
    return QuantisedWeight(codes, scale, "fp8_row")


def fp4_weight(draw: Draw, E: int, N: int, K: int) -> QuantisedWeight:
    """[E, N, K] as two codes a byte with one scale a row and 32 along K."""
    codes = draw.integers(0, 256, E, N, K // 2).to(torch.uint8)
    if draw.family == "zero_block":
        blocks = torch.arange(K // 2).view(1, 1, -1) // (_TILE // 2)
        rows = torch.arange(N).view(1, -1, 1)
        codes[((rows + blocks) % 3 == 0).expand(E, N, K // 2)] = 0
    scale = ue8m0_scales(draw, E, N, K // _TILE, centre=_FP4_SCALE_CENTRE)
    return QuantisedWeight(codes, scale, "fp4")
