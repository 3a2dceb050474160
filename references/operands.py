"""What an op refuses: wrong ranks, lengths and dtypes, with the operand's name in the message."""

from __future__ import annotations

from typing import NoReturn

import torch

from harness.core.errors import UsageError
from harness.core.weights import QuantisedWeight

__all__ = [
    "refuse",
    "require",
    "require_codes",
    "require_float",
    "require_ids",
    "require_mask",
    "require_multiple",
    "require_shape",
    "require_weight",
]

_FLOATS = frozenset((torch.bfloat16, torch.float32, torch.float64))
_IDS = frozenset((torch.int64, torch.int32))


def refuse(op: str, reason: str) -> NoReturn:
    """Raise UsageError in the wording all ops share."""
    raise UsageError(f"{op}: {reason}")


def require(condition: bool, op: str, reason: str) -> None:
    """Raise UsageError unless `condition`."""
    if not condition:
        refuse(op, reason)


def require_float(op: str, name: str, tensor: torch.Tensor, ndim: int | None = None) -> None:
    """bfloat16, float32 or float64, of the given rank if one is given."""
    if tensor.dtype not in _FLOATS:
        refuse(op, f"{name} has dtype {tensor.dtype}: pass bfloat16, float32 or float64")
    if ndim is not None and tensor.ndim != ndim:
        refuse(op, f"{name} has shape {tuple(tensor.shape)}: it must have {ndim} axes")


def require_ids(op: str, name: str, tensor: torch.Tensor, ndim: int) -> None:
    """int64 or int32 of the given rank."""
    if tensor.dtype not in _IDS:
        refuse(op, f"{name} has dtype {tensor.dtype}: pass int64 or int32")
    if tensor.ndim != ndim:
        refuse(op, f"{name} has shape {tuple(tensor.shape)}: it must have {ndim} axes")


def require_mask(op: str, name: str, tensor: torch.Tensor) -> None:
    """bool."""
    if tensor.dtype != torch.bool:
        refuse(op, f"{name} has dtype {tensor.dtype}: a mask is bool")


def require_codes(op: str, name: str, tensor: torch.Tensor) -> None:
    """uint8 bytes."""
    if tensor.dtype != torch.uint8:
        refuse(op, f"{name} has dtype {tensor.dtype}: codes and scales are uint8 bytes")


def require_shape(op: str, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Exactly this shape."""
    if tensor.shape != shape:
        refuse(op, f"{name} has shape {tuple(tensor.shape)}: it must be {shape}")


def require_multiple(op: str, name: str, length: int, unit: int) -> None:
    """`length` divides by `unit`."""
    if unit <= 0 or length % unit:
        refuse(op, f"{name} is {length}: it must be a multiple of {unit}")


def require_weight(op: str, weight: QuantisedWeight, layout: str, in_features: int) -> None:
    """A QuantisedWeight of this layout whose K meets the activations."""
    if not isinstance(weight, QuantisedWeight):
        refuse(op, f"weight is a {type(weight).__name__}: pass a QuantisedWeight")
    if weight.layout != layout:
        refuse(op, f"weight has layout {weight.layout!r}: this op takes {layout!r}")
    if weight.in_features != in_features:
        refuse(op, f"weight has K={weight.in_features} but the activations have {in_features}")
