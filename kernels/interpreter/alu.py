"""The ALU operations of the Vector, GpSimd and DMA engines.

Arithmetic happens in fp32; bitwise operations treat 32-bit patterns; comparisons and logical
operations give 1.0 or 0.0. Source: public NKI documentation, nki.md §2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.errors import refuse

__all__ = ["AluOp", "alu_op"]

Array = npt.NDArray[Any]
Compute = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class AluOp:
    """One operation.

    Attributes:
        name: its name in nki.language.
        kind: "arith", "compare", "logical", "bits" or "unary".
        compute: (a, b, out=) on fp32 arrays; on uint32 for "bits".
        exact: (a, b) on int64 for the exact integer path of GpSimd, None where there is none.
        engines: the engines that have it.
    """

    name: str
    kind: str
    compute: Compute
    exact: Compute | None = None
    engines: tuple[str, ...] = ("vector", "gpsimd", "scalar")

    @property
    def is_bits(self) -> bool:
        """Whether it treats its operands as bit patterns."""
        return self.kind == "bits"

    @property
    def is_unary(self) -> bool:
        """Whether the second operand is ignored."""
        return self.kind == "unary"


def _logical(ufunc: Any) -> Compute:
    def compute(a: Array, b: Any, out: Array) -> None:
        np.copyto(out, ufunc(np.not_equal(a, 0), np.not_equal(b, 0)))

    return compute


def _compare(ufunc: Any) -> Compute:
    def compute(a: Array, b: Any, out: Array) -> None:
        np.copyto(out, ufunc(a, b))

    return compute


def _unary(function: Any) -> Compute:
    def compute(a: Array, _: Any, out: Array) -> None:
        function(a, out=out)

    return compute


def _rsqrt(a: Array, _: Any, out: Array) -> None:
    np.sqrt(a, out=out)
    np.reciprocal(out, out=out)


def _logical_not(a: Array, _: Any, out: Array) -> None:
    np.copyto(out, np.equal(a, 0))


def _bypass(a: Array, _: Any, out: Array) -> None:
    if out is not a:
        np.copyto(out, a)


_GPSIMD = ("gpsimd",)
_OPS = (
    AluOp("add", "arith", np.add, np.add),
    AluOp("subtract", "arith", np.subtract, np.subtract),
    AluOp("multiply", "arith", np.multiply, np.multiply),
    AluOp("maximum", "arith", np.maximum, np.maximum),
    AluOp("minimum", "arith", np.minimum, np.minimum),
    AluOp("power", "arith", np.power, engines=_GPSIMD),
    AluOp("equal", "compare", _compare(np.equal), np.equal),
    AluOp("not_equal", "compare", _compare(np.not_equal), np.not_equal),
    AluOp("less", "compare", _compare(np.less), np.less),
    AluOp("less_equal", "compare", _compare(np.less_equal), np.less_equal),
    AluOp("greater", "compare", _compare(np.greater), np.greater),
    AluOp("greater_equal", "compare", _compare(np.greater_equal), np.greater_equal),
    AluOp("logical_and", "logical", _logical(np.logical_and), np.logical_and),
    AluOp("logical_or", "logical", _logical(np.logical_or), np.logical_or),
    AluOp("logical_xor", "logical", _logical(np.logical_xor), np.logical_xor),
    AluOp("logical_not", "unary", _logical_not),
    AluOp("abs", "unary", _unary(np.abs)),
    AluOp("bypass", "unary", _bypass),
    AluOp("rsqrt", "unary", _rsqrt, engines=_GPSIMD),
    AluOp("bitwise_and", "bits", np.bitwise_and),
    AluOp("bitwise_or", "bits", np.bitwise_or),
    AluOp("bitwise_xor", "bits", np.bitwise_xor),
    AluOp("invert", "bits", lambda a, _, out: np.invert(a, out=out)),
    AluOp("left_shift", "bits", np.left_shift),
    AluOp("right_shift", "bits", np.right_shift),
)
_BY_NAME = {op.name: op for op in _OPS}
_ALIASES = {"bitwise_not": "invert", "absolute": "abs", "copy": "bypass"}
_NOT_ON_TRN2 = {
    "divide": "multiply by nisa.reciprocal",
    "mod": "use shifts and masks on integers",
    "fmod": "use shifts and masks on integers",
    "abs_max": "take nl.abs of each operand first",
    "abs_min": "take nl.abs of each operand first",
    "relu": "use nl.maximum with 0",
    "square": "use nl.multiply of the tile with itself, or nisa.activation",
}


def alu_op(op: object, operand: str = "op") -> AluOp:
    """The operation that `op` (a function of nki.language, or a numpy ufunc) names.

    Raises:
        NkiValidationError: not an operation of trn2's ALUs.
    """
    name = getattr(op, "__name__", None)
    if isinstance(name, str):
        name = _ALIASES.get(name, name)
        if name in _BY_NAME:
            return _BY_NAME[name]
        if name in _NOT_ON_TRN2:
            refuse(operand, f"nl.{name}", "no ALU of trn2 has it", _NOT_ON_TRN2[name])
    refuse(operand, repr(op), f"one of {', '.join(sorted(_BY_NAME))}")
