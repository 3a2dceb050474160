"""The functions of the Scalar engine, in fp32.

The hardware evaluates piecewise polynomials; like the official simulator these are the exact
functions, so a kernel's error here is a lower bound of its error there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.errors import refuse

__all__ = ["ACTIVATIONS", "activation_function", "input_range"]

Array = npt.NDArray[Any]
# Reads the first array, writes the second; they may be the same array.
Activation = Callable[[Array, Array], None]


def _sigmoid(x: Array, out: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1.0, out=out)
    np.reciprocal(out, out=out)


def _gated(gate: Callable[[Array], Array]) -> Activation:
    def activation(x: Array, out: Array) -> None:
        np.multiply(x, gate(x), out=out)

    return activation


def _sigmoid_of(x: Array) -> Array:
    result = np.empty_like(x)
    _sigmoid(x, result)
    return result


def _erf64(x: Array) -> Array:
    """erf in fp64 by numpy.vectorize of the C library's."""
    result: Array = _ERF(np.asarray(x, np.float64))
    return result


_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1.0 + _erf64(np.asarray(x, np.float64) / math.sqrt(2.0)))


def _normal_pdf(x: Array) -> Array:
    x64 = np.asarray(x, np.float64)
    return np.exp(-0.5 * x64 * x64) / math.sqrt(2.0 * math.pi)


def _via(function: Callable[[Array], Array]) -> Activation:
    def activation(x: Array, out: Array) -> None:
        np.copyto(out, function(x), casting="unsafe")

    return activation


def _ufunc(ufunc: Any) -> Activation:
    def activation(x: Array, out: Array) -> None:
        ufunc(x, out=out)

    return activation


def _softplus(x: Array) -> Array:
    x64 = np.asarray(x, np.float64)
    return np.logaddexp(x64, 0.0)


def _gelu_tanh(x: Array) -> Array:
    x64 = np.asarray(x, np.float64)
    return 0.5 * x64 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x64 + 0.044715 * x64**3)))


def _gelu_sigmoid_dx(x: Array) -> Array:
    x64 = np.asarray(x, np.float64)
    gate = 1.0 / (1.0 + np.exp(-1.702 * x64))
    return gate + 1.702 * x64 * gate * (1.0 - gate)


def _silu_dx(x: Array) -> Array:
    x64 = np.asarray(x, np.float64)
    gate = 1.0 / (1.0 + np.exp(-x64))
    return gate * (1.0 + x64 * (1.0 - gate))


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0.0, out=out)


def _square(x: Array, out: Array) -> None:
    np.multiply(x, x, out=out)


def _copy(x: Array, out: Array) -> None:
    if out is not x:
        np.copyto(out, x)


ACTIVATIONS: dict[str, Activation] = {
    "copy": _copy,
    "square": _square,
    "sigmoid": _sigmoid,
    "relu": _relu,
    "gelu": _via(lambda x: np.asarray(x, np.float64) * _normal_cdf(x)),
    "gelu_dx": _via(lambda x: _normal_cdf(x) + np.asarray(x, np.float64) * _normal_pdf(x)),
    "gelu_apprx_tanh": _via(_gelu_tanh),
    "gelu_apprx_sigmoid": _gated(lambda x: _sigmoid_of(np.float32(1.702) * x)),
    "gelu_apprx_sigmoid_dx": _via(_gelu_sigmoid_dx),
    "silu": _gated(_sigmoid_of),
    "silu_dx": _via(_silu_dx),
    "tanh": _ufunc(np.tanh),
    "softplus": _via(_softplus),
    "mish": _via(lambda x: np.asarray(x, np.float64) * np.tanh(_softplus(x))),
    "erf": _via(_erf64),
    "erf_dx": _via(lambda x: 2.0 / math.sqrt(math.pi) * np.exp(-(np.asarray(x, np.float64) ** 2))),
    "exp": _ufunc(np.exp),
    "log": _ufunc(np.log),
    "sin": _ufunc(np.sin),
    "arctan": _ufunc(np.arctan),
    "sqrt": _ufunc(np.sqrt),
    "rsqrt": _rsqrt,
    "reciprocal": _ufunc(np.reciprocal),
    "sign": _ufunc(np.sign),
    "abs": _ufunc(np.abs),
}

# Only sin's range is enforced: the official simulator reproduces no other, and the others are
# wide enough that a correct kernel meets them only with infinities.
_RANGES = {"sin": (-math.pi, math.pi)}


def input_range(name: str) -> tuple[float, float] | None:
    """The range the hardware evaluates `name` on, where it is enforced."""
    return _RANGES.get(name)


def activation_function(op: object) -> tuple[str, Activation]:
    """Name and function that `op` (a function of nki.language) means.

    Raises:
        NkiValidationError: not a function of the Scalar engine.
    """
    name = getattr(op, "__name__", None)
    if isinstance(name, str):
        name = {"absolute": "abs"}.get(name, name)
        if name in ACTIVATIONS:
            return name, ACTIVATIONS[name]
    refuse("op", repr(op), f"one of {', '.join(sorted(ACTIVATIONS))}")
