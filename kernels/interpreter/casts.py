"""Moving values between dtypes the way the engines do: through fp32, to nearest even.

Integers saturate (NKI 0.6 notes: that is the hardware's behaviour); NaN becomes 0. fp8 encodes and
decodes through tables: a numpy cast of fp8 costs six times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernels.interpreter.scratch import scratch

__all__ = ["Array", "as_float32", "decode_float32", "store_float32", "store_integer"]

Array = npt.NDArray[Any]

_FLOAT32 = np.dtype(np.float32)
_FP8 = tuple(
    np.dtype(kind)
    for kind in (
        ml_dtypes.float8_e4m3,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e8m0fnu,
    )
)
_DECODE_PAIRS: dict[np.dtype[Any], Array] = {}
# Below this the second table's cache misses cost more than the lookups it saves.
_PAIRED_SIZE = 4096
_DECODE = {kind: np.arange(256, dtype=np.uint8).view(kind).astype(np.float32) for kind in _FP8}


def _encode_table(kind: np.dtype[Any]) -> Array:
    # Indexed by the upper half of the fp32 bits with the lower half or-ed into the last bit
    # (round to odd), so that the second rounding is the only one.
    upper = np.arange(65536, dtype=np.uint32) << 16
    with np.errstate(all="ignore"):
        return upper.view(np.float32).astype(kind).view(np.uint8)


_ENCODE: dict[np.dtype[Any], Array] = {}


def as_float32(array: Array, slot: str) -> Array:
    """`array` in fp32: itself where it is, else a scratch array named `slot`."""
    kind = array.dtype
    if kind is _FLOAT32 or kind == _FLOAT32:
        return array
    if 0 in array.strides and array.size:
        return _broadcast_float32(array, slot)
    out = scratch(slot, array.shape)
    decode_float32(array, out)
    return out


def _broadcast_float32(array: Array, slot: str) -> Array:
    """Convert what a stride-0 view repeats once, and repeat the result."""
    repeated = array.strides
    once = array[tuple([slice(0, 1) if s == 0 else slice(None) for s in repeated])]
    out = scratch(slot, once.shape)
    decode_float32(once, out)
    strides = [0 if s == 0 else t for s, t in zip(repeated, out.strides, strict=True)]
    return np.ndarray(array.shape, np.float32, out, 0, tuple(strides))


def decode_float32(array: Array, out: Array) -> None:
    """`array` in fp32 into `out`, a C-contiguous fp32 array of its shape."""
    kind = array.dtype
    if kind not in _DECODE:
        np.copyto(out, array, casting="unsafe")
    elif array.size >= _PAIRED_SIZE and array.shape[-1] % 2 == 0 and array.strides[-1] == 1:
        _decode_pairs(array, out)
    else:
        np.take(_DECODE[kind], array.view(np.uint8), out=out, mode="clip")


def _decode_pairs(array: Array, out: Array) -> None:
    """Two bytes a lookup, in a table of 65536 pairs: half the time of one byte a lookup."""
    kind = array.dtype
    table = _DECODE_PAIRS.get(kind)
    if table is None:
        both = np.arange(65536, dtype=np.uint32)
        pairs = np.stack([_DECODE[kind][both & 0xFF], _DECODE[kind][both >> 8]], axis=1)
        table = _DECODE_PAIRS[kind] = np.ascontiguousarray(pairs).view(np.float64).reshape(-1)
    codes = array.view(np.uint16)
    index = scratch("pairs", (*codes.shape, 2)).view(np.int64).reshape(codes.shape)
    np.copyto(index, codes)
    np.take(table, index, out=out.view(np.float64), mode="clip")


def store_float32(destination: Array, values: Array) -> None:
    """Round fp32 `values` (same shape) into `destination`."""
    _STORES.get(destination.dtype, _store_by_cast)(destination, values)


def _store_by_cast(destination: Array, values: Array) -> None:
    np.copyto(destination, values, casting="unsafe")


def _store_flags(destination: Array, values: Array) -> None:
    np.not_equal(values, 0, out=destination)


def store_integer(destination: Array, values: Array) -> None:
    """Round to nearest even and saturate; NaN becomes 0."""
    limits = np.iinfo(destination.dtype)
    if destination.dtype.itemsize < 4:
        # fp32 holds every bound of the narrow integers.
        rounded = np.rint(values, out=scratch("integer", values.shape))
    else:
        rounded = np.rint(values, dtype=np.float64)
    np.clip(rounded, limits.min, limits.max, out=rounded)
    missing = np.isnan(rounded)
    if missing.any():
        rounded[missing] = 0.0
    np.copyto(destination, rounded, casting="unsafe")


def _store_fp8(destination: Array, values: Array) -> None:
    kind = destination.dtype
    if kind not in _ENCODE:
        _ENCODE[kind] = _encode_table(kind)
    bits = np.ascontiguousarray(values).view(np.uint32)
    sticky = (bits & 0xFFFF) != 0
    index = (bits >> 16).astype(np.uint16) | sticky
    destination.view(np.uint8)[...] = np.take(_ENCODE[kind], index, mode="clip")


_STORES: dict[np.dtype[Any], Callable[[Array, Array], None]] = {
    **{
        np.dtype(f"{kind}{bits}"): store_integer for kind in ("int", "uint") for bits in (8, 16, 32)
    },
    **dict.fromkeys(_FP8, _store_fp8),
    np.dtype(np.bool_): _store_flags,
}
