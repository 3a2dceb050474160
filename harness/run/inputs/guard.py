"""Were the inputs left alone? Every byte of every storage is compared, views' surroundings too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.run.inputs.arguments import Arguments, storage_bytes

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The bytes of each argument's storage and its shape, as they were."""

    storages: tuple[tuple[str, torch.Tensor], ...]
    faces: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, arguments: Arguments) -> Snapshot:
        """Copy the storages."""
        named = list(arguments.tensors())
        return cls(
            tuple((name, storage_bytes(tensor).clone()) for name, tensor in named),
            tuple(_face(tensor) for _, tensor in named),
        )

    def difference(self, arguments: Arguments) -> str:
        """What changed since, in words; empty if nothing did."""
        for (name, before), face, (_, tensor) in zip(
            self.storages, self.faces, arguments.tensors(), strict=True
        ):
            if _face(tensor) != face:
                return f"input {name} changed its shape, strides, dtype or storage"
            after = storage_bytes(tensor)
            if not torch.equal(before, after):
                return _describe(name, tensor, (before != after).nonzero().flatten())
        return ""


def _face(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.dtype,
        tuple(tensor.size()),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().data_ptr(),
    )


def _describe(name: str, tensor: torch.Tensor, changed_bytes: torch.Tensor) -> str:
    first = int(changed_bytes[0]) // tensor.element_size()
    num_changed = len(torch.unique(changed_bytes // tensor.element_size()))
    positions = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    inside = (
        positions.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    ) == first
    where = inside.nonzero()
    if len(where):
        return f"input {name}: {num_changed} elements changed, first {tuple(where[0].tolist())}"
    return (
        f"input {name}: {num_changed} elements changed, first outside the view, "
        f"at element {first} of its storage"
    )
