"""The operation names of nki.language: tokens for isa calls, and eager helpers on tiles.

`op=nl.add` names an operation; `nl.add(x, y)` on tiles allocates a result in SBUF and issues the
instructions for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.interpreter import isa
from kernels.interpreter.allocation import allocate
from kernels.interpreter.dtypes import DType, dtype_of
from kernels.interpreter.errors import refuse
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.tensor import NkiTensor

__all__ = ["BINARY", "OTHER", "UNARY"]

Operation = Callable[..., Any]
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_LOGICAL = ("logical_and", "logical_or", "logical_xor")


def _new_tile(shape: tuple[int, ...], dtype: object) -> NkiTensor:
    """A fresh SBUF tile."""
    return allocate(shape, dtype, MemoryRegion.sbuf, "", None)


def _result_dtype(x: NkiTensor, dtype: object, default: str | None = None) -> DType:
    kind = dtype_of(dtype) if dtype is not None else dtype_of(default or x.dtype)
    if kind is None:
        refuse("dtype", repr(dtype), "a dtype of nki.language")
    return kind


def _binary(name: str) -> Operation:
    def operation(x: Any, y: Any, dtype: Any = None) -> Any:
        default = "uint8" if name in _COMPARISONS or name in _LOGICAL else None
        token = BINARY[name]
        if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
            out = _new_tile(x.shape, _result_dtype(x, dtype, default))
            isa.tensor_tensor(dst=out, data1=x, data2=y, op=token)
            return out
        tile, scalar, swapped = (x, y, False) if isinstance(x, NkiTensor) else (y, x, True)
        if not isinstance(tile, NkiTensor):
            refuse("x", repr(x), "at least one tile", instruction=f"nl.{name}")
        out = _new_tile(tile.shape, _result_dtype(tile, dtype, default))
        isa.tensor_scalar(dst=out, data=tile, op0=token, operand0=scalar, reverse0=swapped)
        return out

    return _named(operation, name, f"x {name} y, elementwise.")


def _unary(name: str) -> Operation:
    def operation(x: Any, dtype: Any = None) -> Any:
        out = _new_tile(x.shape, _result_dtype(x, dtype))
        isa.activation(dst=out, op=UNARY[name], data=x)
        return out

    return _named(operation, name, f"{name}(x) on the Scalar engine.")


def _named(operation: Operation, name: str, doc: str) -> Operation:
    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = doc
    operation.__module__ = "nki.language"
    return operation


_BINARY_NAMES = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "abs_max",
    "abs_min",
    "power",
    "fmod",
    "mod",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    *_COMPARISONS,
    *_LOGICAL,
)
_UNARY_NAMES = (
    "square",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "relu",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "gelu_apprx_sigmoid_dx",
    "silu",
    "silu_dx",
    "softplus",
    "mish",
    "erf",
    "erf_dx",
    "copy",
    "sin",
    "arctan",
    "sign",
    "abs",
)
BINARY: dict[str, Operation] = {}
UNARY: dict[str, Operation] = {}
BINARY.update({name: _binary(name) for name in _BINARY_NAMES})
UNARY.update({name: _unary(name) for name in _UNARY_NAMES})


def _token(name: str) -> Operation:
    def operation(*_: Any) -> Any:
        refuse("op", f"nl.{name} called", "a name for op= of an instruction")

    return _named(operation, name, f"The operation {name}, as op= of an instruction.")


# Names that only instructions take.
OTHER: dict[str, Operation] = {name: _token(name) for name in ("average", "prelu", "bypass")}
