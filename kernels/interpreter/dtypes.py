"""The dtypes of trn2 and how numpy carries them.

Source: public NKI documentation. `float8_e4m3` is the IEEE-style format of trn2 (exponent 15
reserved, largest finite 240), not the OCP one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["DTYPES", "DType", "dtype_of", "widened"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type.

    Attributes:
        name: its public name.
        carrier: numpy dtype of the array that holds it.
        kind: "float", "int", "uint" or "bool".
        min_target: first architecture that has it ("trn2", "trn3", …).
        is_widened: carried in fp32 although it is narrower (NKI_PRECISE_FP=0).
    """

    name: str
    carrier: np.dtype[Any]
    kind: str
    min_target: str = "trn2"
    is_widened: bool = False

    @property
    def device_itemsize(self) -> int:
        """Bytes of one element on the device."""
        return DTYPES[self.name].itemsize if self.is_widened else self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.carrier.itemsize

    @property
    def is_integer(self) -> bool:
        """Whether bitwise operations may touch it."""
        return self.kind in ("int", "uint", "bool")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        if isinstance(other, str):
            return self.name == other or str(self.carrier) == other
        if isinstance(other, np.dtype) or (isinstance(other, type) and self.name != "tfloat32"):
            try:
                return np.dtype(other) == self.carrier
            except TypeError:
                return NotImplemented
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _dtype(name: str, carrier: npt.DTypeLike, kind: str, min_target: str = "trn2") -> DType:
    return DType(name, np.dtype(carrier), kind, min_target)


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _dtype("bool_", np.bool_, "bool"),
        _dtype("int8", np.int8, "int"),
        _dtype("int16", np.int16, "int"),
        _dtype("int32", np.int32, "int"),
        _dtype("uint8", np.uint8, "uint"),
        _dtype("uint16", np.uint16, "uint"),
        _dtype("uint32", np.uint32, "uint"),
        _dtype("float16", np.float16, "float"),
        _dtype("float32", np.float32, "float"),
        _dtype("bfloat16", ml_dtypes.bfloat16, "float"),
        _dtype("tfloat32", np.float32, "float"),
        _dtype("float8_e4m3", ml_dtypes.float8_e4m3, "float"),
        _dtype("float8_e5m2", ml_dtypes.float8_e5m2, "float"),
        # Carried in HBM and viewed as another type; engines of trn2 do not compute on these.
        _dtype("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float", "trn3"),
        _dtype("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "float", "trn3"),
        _dtype("float8_e5m2_x4", np.uint32, "uint", "trn3"),
        _dtype("float8_e4m3fn_x4", np.uint32, "uint", "trn3"),
        _dtype("float4_e2m1fn_x4", np.uint16, "uint", "trn3"),
    )
}

_WIDENED = {
    name: DType(name, np.dtype(np.float32), "float", dtype.min_target, is_widened=True)
    for name, dtype in DTYPES.items()
    if dtype.kind == "float" and dtype.itemsize < 4
}

_BY_CARRIER: dict[np.dtype[Any], DType] = {}
for _candidate in DTYPES.values():
    _BY_CARRIER.setdefault(_candidate.carrier, _candidate)
_BY_TEXT = {str(dtype.carrier): dtype for dtype in _BY_CARRIER.values()} | DTYPES


def widened(kind: DType) -> DType:
    """`kind` carried in fp32, where it is a narrower float."""
    return _WIDENED.get(kind.name, kind)


def dtype_of(value: object) -> DType | None:
    """The DType that `value` (a DType, numpy dtype, torch dtype or name) means, or None."""
    if isinstance(value, DType):
        return value
    text = value if isinstance(value, str) else str(value)
    if text.startswith("torch."):
        text = text.removeprefix("torch.")
    if text in _BY_TEXT:
        return _BY_TEXT[text]
    try:
        return _BY_CARRIER.get(np.dtype(value))  # type: ignore[call-overload]
    except TypeError:
        return None
