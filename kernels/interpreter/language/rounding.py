"""Eager functions that take several instructions: rounding, cos, tan and the like."""

from __future__ import annotations

import math
from typing import Any

from kernels.interpreter import isa
from kernels.interpreter.language.creation import ndarray
from kernels.interpreter.language.operations import BINARY, UNARY
from kernels.interpreter.tensor import NkiTensor

__all__ = [
    "ceil",
    "cos",
    "floor",
    "invert",
    "logical_not",
    "negative",
    "reciprocal",
    "tan",
    "trunc",
]

# Above this every fp32 number is an integer, and int32 conversion would saturate.
_ALL_INTEGERS = 2.0**23


def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / x on the Vector engine."""
    out = ndarray(x.shape, dtype or x.dtype)
    isa.reciprocal(dst=out, data=x)
    return out


def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """-x."""
    return _scalar(x, "multiply", -1.0, dtype or x.dtype)


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 where x is 0, else 0."""
    return _scalar(x, "equal", 0, dtype or "uint8")


def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Every bit flipped."""
    return _scalar(x, "bitwise_xor", -1, dtype or x.dtype)


def _scalar(x: NkiTensor, name: str, value: Any, dtype: Any) -> NkiTensor:
    out = ndarray(x.shape, dtype)
    isa.tensor_scalar(dst=out, data=x, op0=BINARY[name], operand0=value)
    return out


def _rounded(x: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """x in fp32, and x rounded to an integer (to nearest even) in fp32."""
    values, whole = ndarray(x.shape, "float32"), ndarray(x.shape, "int32")
    isa.tensor_copy(dst=values, src=x)
    isa.tensor_copy(dst=whole, src=x)
    rounded = ndarray(x.shape, "float32")
    isa.tensor_copy(dst=rounded, src=whole)
    return values, rounded


def _finish(values: NkiTensor, rounded: NkiTensor, dtype: Any) -> NkiTensor:
    """`rounded`, but the values themselves where they are integers already."""
    large = ndarray(values.shape, "uint8")
    isa.tensor_scalar(
        dst=large,
        data=values,
        op0=UNARY["abs"],
        operand0=0.0,
        op1=BINARY["less"],
        operand1=_ALL_INTEGERS,
    )
    isa.tensor_copy_predicated(dst=rounded, src=values, predicate=large, reverse_pred=True)
    out = ndarray(values.shape, dtype)
    isa.tensor_copy(dst=out, src=rounded)
    return out


def _step(values: NkiTensor, rounded: NkiTensor, compare: str, combine: str) -> NkiTensor:
    """rounded combine (rounded compare values)."""
    over, out = ndarray(values.shape, "float32"), ndarray(values.shape, "float32")
    isa.tensor_tensor(dst=over, data1=rounded, data2=values, op=BINARY[compare])
    isa.tensor_tensor(dst=out, data1=rounded, data2=over, op=BINARY[combine])
    return out


def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The largest integer not above x."""
    values, rounded = _rounded(x)
    return _finish(values, _step(values, rounded, "greater", "subtract"), dtype or x.dtype)


def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The smallest integer not below x."""
    values, rounded = _rounded(x)
    return _finish(values, _step(values, rounded, "less", "add"), dtype or x.dtype)


def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """x without its fraction."""
    values, rounded = _rounded(x)
    down = _step(values, rounded, "greater", "subtract")
    up = _step(values, rounded, "less", "add")
    below = ndarray(x.shape, "uint8")
    isa.tensor_scalar(dst=below, data=values, op0=BINARY["less"], operand0=0.0)
    isa.tensor_copy_predicated(dst=down, src=up, predicate=below)
    return _finish(values, down, dtype or x.dtype)


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """cos(x) = sin(pi/2 - |x|), for |x| <= 3 pi / 2: the range the engine's sin takes."""
    folded, out = ndarray(x.shape, "float32"), ndarray(x.shape, dtype or x.dtype)
    isa.activation(dst=folded, op=UNARY["abs"], data=x)
    isa.tensor_scalar(
        dst=folded,
        data=folded,
        op0=BINARY["multiply"],
        operand0=-1.0,
        op1=BINARY["add"],
        operand1=math.pi / 2,
    )
    isa.activation(dst=out, op=UNARY["sin"], data=folded)
    return out


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """sin(x) / cos(x), for |x| <= pi."""
    sine, out = ndarray(x.shape, "float32"), ndarray(x.shape, dtype or x.dtype)
    isa.activation(dst=sine, op=UNARY["sin"], data=x)
    cosine = cos(x, "float32")
    isa.reciprocal(dst=cosine, data=cosine)
    isa.tensor_tensor(dst=out, data1=sine, data2=cosine, op=BINARY["multiply"])
    return out
