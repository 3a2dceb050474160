"""The arguments of one call, in the sheet's order, and their copies for each side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.core.ops import OpSpec
from harness.core.weights import QuantisedWeight

__all__ = ["Arguments", "cloned_tensor", "storage_bytes"]


@dataclass(frozen=True, slots=True)
class Arguments:
    """Positional arguments of an op: tensors, QuantisedWeights, scalars or None, by name."""

    spec: OpSpec
    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        if tuple(self.values) != self.spec.parameter_names:
            raise ValueError(f"{self.spec.name} takes {self.spec.parameter_names}")

    def positional(self) -> tuple[Any, ...]:
        """In the order of the sheet."""
        return tuple(self.values.values())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor with its name; a weight gives `weight.codes` and `weight.scale`."""
        for name, value in self.values.items():
            if isinstance(value, torch.Tensor):
                yield name, value
            elif isinstance(value, QuantisedWeight):
                yield f"{name}.codes", value.codes
                yield f"{name}.scale", value.scale

    def cloned(self) -> Arguments:
        """A copy that shares no memory, with the same strides, offset and surroundings."""
        return Arguments(self.spec, {name: _cloned(v) for name, v in self.values.items()})

    def contiguous(self) -> Arguments:
        """A contiguous copy: what a layout must not change is judged against it."""
        return Arguments(
            self.spec,
            {
                name: value.contiguous().clone()
                if isinstance(value, torch.Tensor)
                else _cloned(value)
                for name, value in self.values.items()
            },
        )

    def in_float64(self) -> Arguments:
        """The same with activations and accumulators as float64 (exact)."""
        kinds = {value.name: value.kind for value in self.spec.inputs}
        return Arguments(
            self.spec,
            {
                name: value.to(torch.float64)
                if isinstance(value, torch.Tensor) and kinds[name] in ("act", "acc")
                else value
                for name, value in self.contiguous().values.items()
            },
        )


def cloned_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor with its whole storage, so that what surrounds a view is kept."""
    storage = storage_bytes(tensor).clone().untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(
        storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Everything the tensor's storage holds, as uint8, sharing its memory."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return cloned_tensor(value)
    if isinstance(value, QuantisedWeight):
        return QuantisedWeight(cloned_tensor(value.codes), cloned_tensor(value.scale), value.layout)
    return value
