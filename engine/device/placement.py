"""Moves what a rank loaded to its device; quantised weights stay as their ops want them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from harness.core.weights import QuantisedWeight

__all__ = ["on_device", "resident"]

T = TypeVar("T")
_RESIDENT = "device/"


def on_device(weights: T, device: torch.device) -> T:
    """The same weight objects with every plain tensor on `device`.

    A QuantisedWeight keeps its codes on the host: a kernel lays them out there once, and only
    that form goes to the device; what runs in plain torch asks `resident`.
    """
    if device.type == "cpu":
        return weights
    moved: T = _moved(weights, device)
    return moved


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, (QuantisedWeight, type)):
        changes = {item.name: _moved(getattr(value, item.name), device) for item in fields(value)}
        return replace(value, **changes)
    return value


def resident(weight: QuantisedWeight, device: torch.device) -> QuantisedWeight:
    """The weight with its codes on `device`, moved once and kept by the weight."""
    return weight.prepared(
        f"{_RESIDENT}{device}",
        lambda raw: QuantisedWeight(raw.codes.to(device), raw.scale.to(device), raw.layout),
    )
