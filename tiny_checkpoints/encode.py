"""Encoders of this island: fp64 numbers to bf16, e4m3fn, e2m1 and ue8m0 bytes.

Written apart from references, engine and kernels, so that a shared encoder bug cannot pass.
Sources: model.md §2.1 and §4.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "E2M1_MAX",
    "E4M3_MAX",
    "TILE",
    "bf16_bytes",
    "e2m1_codes",
    "e4m3_bytes",
    "fp4_rows",
    "fp8_rows",
    "fp8_tiles",
    "pow2_ceil_exponent",
    "ue8m0_bytes",
]

TILE = 32
E4M3_MAX = 448.0
E2M1_MAX = 6.0
_FP8_AMAX_FLOOR = 1e-4
_FP4_AMAX_FLOOR = 6.0 * 2.0**-126
_E4M3_MIN_EXPONENT = -6
# (border, does a tie at the border go up): ties go to the even code.
_E2M1_BORDERS = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)

Reals = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


def bf16_bytes(values: Reals) -> npt.NDArray[np.uint16]:
    """bf16 patterns, round half to even from the nearest fp32."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def e4m3_bytes(values: Reals) -> Bytes:
    """e4m3fn codes, round half to even, clamped to ±448."""
    magnitude = np.minimum(np.abs(values), E4M3_MAX)
    # frexp's mantissa lies in [0.5, 1), so the binade's exponent is one less; what lies below
    # the smallest normal, zero included, counts in the subnormals' steps.
    is_normal = magnitude >= 2.0**_E4M3_MIN_EXPONENT
    exponent = np.where(is_normal, np.frexp(magnitude)[1] - 1, _E4M3_MIN_EXPONENT)
    eighths = np.rint(np.ldexp(magnitude, 3 - exponent))
    # In a normal binade `eighths` runs from 8 to 16; 16 carries into the next binade by itself.
    codes = ((exponent - _E4M3_MIN_EXPONENT) * 8 + eighths).astype(np.uint8)
    signed: Bytes = codes | (np.signbit(values).astype(np.uint8) << np.uint8(7))
    return signed


def e2m1_codes(values: Reals) -> Bytes:
    """e2m1 nibbles (sign << 3 | code), round to nearest, ties to the even code, clamped to ±6."""
    magnitude = np.abs(values)
    codes = np.zeros(values.shape, dtype=np.uint8)
    for border, tie_goes_up in _E2M1_BORDERS:
        codes += (magnitude >= border) if tie_goes_up else (magnitude > border)
    signed: Bytes = codes | (np.signbit(values).astype(np.uint8) << np.uint8(3))
    return signed


def pow2_ceil_exponent(values: Reals) -> npt.NDArray[np.int32]:
    """ceil(log2(x)) of positive numbers, exactly."""
    mantissa, exponent = np.frexp(values)
    is_power_of_two: npt.NDArray[np.bool_] = mantissa == 0.5
    return exponent.astype(np.int32) - is_power_of_two.astype(np.int32)


def ue8m0_bytes(exponents: npt.NDArray[np.int32]) -> Bytes:
    """Scale bytes of powers of two.

    Raises:
        ValueError: an exponent outside -127..127.
    """
    if exponents.size and (exponents.min() < -127 or exponents.max() > 127):
        raise ValueError(f"exponents {exponents.min()}..{exponents.max()} do not fit ue8m0")
    return (exponents + 127).astype(np.uint8)


def fp8_tiles(weight_NK: Reals) -> tuple[Bytes, Bytes]:
    """e4m3 codes [N, K] and ue8m0 scales [N/32, K/32] of 32×32 tiles.

    Raises:
        ValueError: N or K is not a multiple of 32.
    """
    tiles = _tiled(weight_NK, TILE)
    amax = np.maximum(np.abs(tiles).max(axis=(1, 3)), _FP8_AMAX_FLOOR)
    exponents = pow2_ceil_exponent(amax / E4M3_MAX)
    codes = e4m3_bytes(np.ldexp(tiles, -exponents[:, None, :, None]))
    return codes.reshape(weight_NK.shape), ue8m0_bytes(exponents)


def fp8_rows(table_NK: Reals, exponents: npt.NDArray[np.int32]) -> tuple[Bytes, Bytes]:
    """e4m3 codes [N, K] under given scale exponents [N, K/32] (the Engram table)."""
    groups = _tiled(table_NK, 1)[:, 0]
    codes = e4m3_bytes(np.ldexp(groups, -exponents[:, :, None]))
    return codes.reshape(table_NK.shape), ue8m0_bytes(exponents)


def fp4_rows(weight_NK: Reals) -> tuple[Bytes, Bytes]:
    """Packed e2m1 bytes [N, K/2], even K in the low nibble, and ue8m0 scales [N, K/32].

    Raises:
        ValueError: K is not a multiple of 32.
    """
    groups = _tiled(weight_NK, 1)[:, 0]
    amax = np.maximum(np.abs(groups).max(axis=2), _FP4_AMAX_FLOOR)
    exponents = pow2_ceil_exponent(amax / E2M1_MAX)
    codes = e2m1_codes(np.ldexp(groups, -exponents[:, :, None])).reshape(weight_NK.shape)
    packed = codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    return packed, ue8m0_bytes(exponents)


def _tiled(weight_NK: Reals, tile_rows: int) -> Reals:
    num_rows, num_columns = weight_NK.shape
    if num_rows % tile_rows or num_columns % TILE:
        raise ValueError(f"shape {weight_NK.shape} is not a whole number of tiles of {TILE}")
    return weight_NK.reshape(num_rows // tile_rows, tile_rows, num_columns // TILE, TILE)
