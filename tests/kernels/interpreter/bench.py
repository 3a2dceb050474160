"""Runs one instruction on tiles, and independent definitions of the number formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki

Array = npt.NDArray[Any]

CARRIERS: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
}
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")

# Reproducible and quick: the same examples in every run.
PROPERTY = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def run_instruction(
    issue: Callable[..., Any],
    inputs: Sequence[Array],
    out_shape: tuple[int, ...],
    out_dtype: str,
    *,
    buffer: Any = nl.sbuf,
    psum: tuple[int, ...] = (),
) -> Array:
    """Load `inputs` into tiles (those numbered in `psum` into PSUM), `issue(dst, *tiles)`,
    and return dst."""

    @nki.jit
    def kernel(arrays: tuple[Any, ...]) -> Any:
        tiles = []
        for number, array in enumerate(arrays):
            tile = nl.ndarray(array.shape, dtype=array.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=array)
            if number in psum:
                copied = nl.ndarray(array.shape, dtype=array.dtype, buffer=nl.psum)
                nisa.tensor_copy(dst=copied, src=tile)
                tile = copied
            tiles.append(tile)
        dst = nl.ndarray(out_shape, dtype=out_dtype, buffer=buffer)
        issue(dst, *tiles)
        if buffer == nl.psum:
            staged = nl.ndarray(out_shape, dtype=out_dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=staged, src=dst)
            dst = staged
        out = nl.ndarray(out_shape, dtype=out_dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=dst)
        return out

    result: Array = kernel(tuple(inputs))
    return result


def nearest(values: Any, name: str) -> Array:
    """`values` (fp64) rounded to the format `name`: the nearest member, ties to the even code.

    Defined by searching the sorted list of all members, not by any cast.
    """
    with np.errstate(all="ignore"):
        return _nearest(np.asarray(values, np.float64), name)


def _nearest(wide: Array, name: str) -> Array:
    carrier = np.dtype(CARRIERS[name])
    if name == "float32":
        return wide.astype(np.float32)
    if name in INTEGERS:
        info = np.iinfo(carrier)
        return np.clip(np.rint(np.nan_to_num(wide, nan=0.0)), info.min, info.max).astype(carrier)
    bits = np.uint8 if carrier.itemsize == 1 else np.uint16
    codes = np.arange(2 ** (8 * carrier.itemsize - 1), dtype=np.int64)
    members = codes.astype(bits).view(carrier).astype(np.float64)
    finite = members[np.isfinite(members)]
    return _signed_nearest(wide, finite, codes, carrier, bits)


def _signed_nearest(
    wide: Array, finite: Array, codes: Array, carrier: np.dtype[Any], bits: Any
) -> Array:
    magnitude = np.abs(wide)
    upper = np.clip(np.searchsorted(finite, magnitude), 1, len(finite) - 1)
    lower = upper - 1
    middle = (finite[lower] + finite[upper]) / 2
    take_upper = (magnitude > middle) | ((magnitude == middle) & (codes[upper] % 2 == 0))
    chosen = np.where(take_upper, upper, lower)
    # Beyond half a step above the largest member lies infinity.
    step = finite[-1] - finite[-2]
    chosen = np.where(magnitude >= finite[-1] + step / 2, len(finite), chosen)
    sign = np.int64(1) << (8 * carrier.itemsize - 1)
    result = (chosen + np.where(np.signbit(wide), sign, 0)).astype(bits).view(carrier)
    result[np.isnan(wide)] = np.nan
    return result


def same(left: Array, right: Array) -> bool:
    """Equal values; NaN equals NaN, and the sign of zero counts."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind in "iub":
        return bool((left == right).all())
    a, b = left.astype(np.float64), right.astype(np.float64)
    both_nan = np.isnan(a) & np.isnan(b)
    return bool((both_nan | ((a == b) & (np.signbit(a) == np.signbit(b)))).all())


def tile_values(seed: int, shape: tuple[int, ...], name: str, *, special: bool = True) -> Array:
    """Seeded contents of a dtype: mixed magnitudes, ties and (floats) NaN and infinities."""
    rng = np.random.default_rng(seed)
    carrier = np.dtype(CARRIERS[name])
    if name in INTEGERS:
        info = np.iinfo(carrier)
        low, high = max(info.min, -(2**23)), min(info.max, 2**23)
        values = rng.integers(low, high, size=shape, endpoint=True)
        small = rng.integers(max(info.min, -3), 4, size=shape)
        return np.where(rng.random(shape) < 0.5, values, small).astype(carrier)
    numbers = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, size=shape)
    numbers = np.where(rng.random(shape) < 0.3, np.rint(numbers), numbers)
    if special:
        draws = rng.random(shape)
        numbers = np.where(draws < 0.02, np.nan, numbers)
        numbers = np.where((draws >= 0.02) & (draws < 0.04), np.inf, numbers)
        numbers = np.where((draws >= 0.04) & (draws < 0.06), -np.inf, numbers)
        numbers = np.where((draws >= 0.06) & (draws < 0.1), -0.0, numbers)
    with np.errstate(all="ignore"):
        return numbers.astype(np.float32).astype(carrier)
