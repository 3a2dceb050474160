"""Eager reductions along free axes, and what is built from them."""

from __future__ import annotations

import math
from typing import Any

from kernels.interpreter import isa
from kernels.interpreter.errors import refuse
from kernels.interpreter.language.creation import ndarray
from kernels.interpreter.language.operations import BINARY, UNARY
from kernels.interpreter.strides import product
from kernels.interpreter.tensor import NkiTensor

__all__ = ["all", "max", "mean", "min", "prod", "rms_norm", "softmax", "sum", "var"]


def _axes(x: NkiTensor, axis: Any) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return tuple(sorted(item % len(x.shape) for item in axes))


def _reduce(x: NkiTensor, name: str, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    axes = _axes(x, axis)
    kept = [1 if dim in axes else extent for dim, extent in enumerate(x.shape)]
    out = ndarray(tuple(kept), dtype or x.dtype)
    isa.tensor_reduce(dst=out, op=BINARY[name], data=x, axis=axes, keepdims=keepdims)
    if keepdims:
        return out
    left = [extent for dim, extent in enumerate(x.shape) if dim not in axes]
    return out.reshape(tuple(left) if len(left) > 1 else (left[0], 1))


def sum(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Sum along trailing free axes."""
    return _reduce(x, "add", axis, dtype, keepdims)


def max(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Maximum along trailing free axes."""
    return _reduce(x, "maximum", axis, dtype, keepdims)


def min(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Minimum along trailing free axes."""
    return _reduce(x, "minimum", axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Product along trailing free axes."""
    return _reduce(x, "multiply", axis, dtype, keepdims)


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Mean along trailing free axes: the sum in fp32 times 1 / count."""
    total = _reduce(x, "add", axis, "float32", keepdims)
    count = product(tuple(x.shape[dim] for dim in _axes(x, axis)))
    out = ndarray(total.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=out, data=total, op0=BINARY["multiply"], operand0=1.0 / count)
    return out


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Population variance along all free axes."""
    if _axes(x, axis) != tuple(range(1, len(x.shape))):
        refuse("axis", axis, "all free axes", instruction="nl.var")
    rows = x.shape[0]
    centre = mean(x, axis, "float32", True).reshape((rows, 1))
    deviation = ndarray(x.shape, "float32")
    isa.tensor_scalar(dst=deviation, data=x, op0=BINARY["subtract"], operand0=centre)
    squares = ndarray(x.shape, "float32")
    isa.tensor_tensor(dst=squares, data1=deviation, data2=deviation, op=BINARY["multiply"])
    return mean(squares, axis, dtype or x.dtype, keepdims)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where every element along the axes is non-zero, else 0."""
    flags = ndarray(x.shape, "float32")
    isa.tensor_scalar(dst=flags, data=x, op0=BINARY["not_equal"], operand0=0)
    return _reduce(flags, "minimum", axis, dtype or "uint8", False)


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) / sum along all free axes."""
    if _axes(x, axis) != tuple(range(1, len(x.shape))):
        refuse("axis", axis, "all free axes", instruction="nl.softmax")
    rows = x.shape[0]
    peak = ndarray((rows, 1), "float32")
    free = tuple(range(1, len(x.shape)))
    isa.tensor_reduce(dst=peak, op=BINARY["maximum"], data=x, axis=free, negate=True)
    powers, total = ndarray(x.shape, "float32"), ndarray((rows, 1), "float32")
    isa.activation_reduce(
        dst=powers,
        op=UNARY["exp"],
        data=x,
        reduce_op=BINARY["add"],
        reduce_res=total,
        bias=peak,
    )
    isa.reciprocal(dst=total, data=total)
    out = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=out, data=powers, op0=BINARY["multiply"], operand0=total)
    return out


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-06,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w; w has the partitions of x."""
    if math.prod(x.shape[dim] for dim in _axes(x, axis)) != math.prod(x.shape[1:]):
        refuse("axis", axis, "all free axes", instruction="nl.rms_norm")
    rows = x.shape[0]
    middle = compute_dtype or "float32"
    squares, total = ndarray(x.shape, middle), ndarray((rows, 1), "float32")
    isa.activation_reduce(
        dst=squares, op=UNARY["square"], data=x, reduce_op=BINARY["add"], reduce_res=total
    )
    isa.tensor_scalar(
        dst=total,
        data=total,
        op0=BINARY["multiply"],
        operand0=1.0 / n,
        op1=BINARY["add"],
        operand1=epsilon,
    )
    isa.activation(dst=total, op=UNARY["rsqrt"], data=total)
    out = ndarray(x.shape, dtype or x.dtype)
    isa.scalar_tensor_tensor(
        dst=out, data=x, op0=BINARY["multiply"], operand0=total, op1=BINARY["multiply"], operand1=w
    )
    return out
