"""What every kernel's host side checks before a launch, in the wording all kernels share.

Wrong operands (rank, length, dtype) raise UsageError: no backend could run them. Numerics and
sizes outside a kernel's contract raise KernelError("UNSUPPORTED"): another backend could.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight

__all__ = [
    "refuse",
    "require",
    "require_dtype",
    "require_ids",
    "require_limit",
    "require_mask",
    "require_shape",
    "require_trn2",
    "require_weight",
]


def refuse(op: str, reason: str) -> NoReturn:
    """Raise UsageError for an operand no backend could take."""
    raise UsageError(f"{op}: {reason}")


def require(condition: bool, op: str, reason: str) -> None:
    """Raise UsageError unless `condition`."""
    if not condition:
        refuse(op, reason)


def require_trn2(op: str, numerics: Numerics) -> None:
    """Kernels compute in what Trainium2 has: bf16 activations, fp32 sums, the 240 grid.

    Raises:
        KernelError: UNSUPPORTED for every other numerics.
    """
    found = (numerics.activation, numerics.accumulate, numerics.quantise, numerics.fp8_max)
    if found != ("bfloat16", "float32", True, 240):
        raise KernelError(
            "UNSUPPORTED",
            f"{op}: kernels need activation bfloat16, accumulate float32, quantise, fp8_max 240; "
            f"numerics {numerics.name!r} has activation {numerics.activation}, accumulate "
            f"{numerics.accumulate}, quantise {numerics.quantise}, fp8_max {numerics.fp8_max}",
        )


def require_limit(op: str, name: str, value: int, limit: int) -> None:
    """A dimension within the kernel's contract.

    Raises:
        KernelError: UNSUPPORTED where it is larger.
    """
    if value > limit:
        raise KernelError("UNSUPPORTED", f"{op}: {name} is {value}, this kernel ends at {limit}")


def require_dtype(op: str, name: str, tensor: torch.Tensor, *allowed: torch.dtype) -> None:
    """One of the dtypes the kernel reads.

    Raises:
        KernelError: UNSUPPORTED for another floating dtype.
        UsageError: no tensor of that kind at all.
    """
    if tensor.dtype in allowed:
        return
    names = " or ".join(str(dtype) for dtype in allowed)
    message = f"{op}: {name} has dtype {tensor.dtype}, this kernel reads {names}"
    if tensor.dtype.is_floating_point and allowed[0].is_floating_point:
        raise KernelError("UNSUPPORTED", message)
    raise UsageError(message)


def require_shape(op: str, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Exactly this shape."""
    if tuple(tensor.shape) != shape:
        refuse(op, f"{name} has shape {tuple(tensor.shape)}: it must be {shape}")


def require_ids(op: str, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """int64 or int32 of this shape."""
    if tensor.dtype not in (torch.int64, torch.int32):
        refuse(op, f"{name} has dtype {tensor.dtype}: pass int64 or int32")
    require_shape(op, name, tensor, shape)


def require_mask(op: str, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """bool of this shape."""
    if tensor.dtype != torch.bool:
        refuse(op, f"{name} has dtype {tensor.dtype}: pass a bool mask")
    require_shape(op, name, tensor, shape)


def require_weight(op: str, weight: QuantisedWeight, layout: str, in_features: int) -> None:
    """A QuantisedWeight of this layout whose K, a multiple of 32, meets the activations."""
    if not isinstance(weight, QuantisedWeight):
        refuse(op, f"weight is a {type(weight).__name__}: pass a QuantisedWeight")
    require(
        weight.layout == layout,
        op,
        f"weight has layout {weight.layout!r}: this op takes {layout!r}",
    )
    require(
        weight.in_features == in_features,
        op,
        f"weight has K={weight.in_features} but the activations have {in_features}",
    )
    require(in_features % 32 == 0, op, f"K is {in_features}: it must be a multiple of 32")
