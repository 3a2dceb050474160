"""Tensors of a checkpoint by name, checked against what the configuration implies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from harness.core.errors import InputError
from harness.core.suggest import near_names

__all__ = ["Checkpoint", "MetaCheckpoint", "Span", "TensorSource"]

Span = tuple[int, int]
"""Half-open range of one axis."""

_TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.uint8,
    "F8_E8M0": torch.uint8,
    "I8": torch.uint8,
}


class TensorSource(Protocol):
    """Where layers take their tensors from."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`."""

    def read(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        rows: Span | None = None,
        columns: Span | None = None,
    ) -> torch.Tensor:
        """The tensor, or its rows and columns; F8 and I8 tensors arrive as uint8.

        Args:
            dtype: name in the safetensors header.
            shape: of the whole tensor.
        """

    def stack(
        self, names: Sequence[Sequence[str]], dtype: str, shape: tuple[int, int]
    ) -> torch.Tensor:
        """[len(names), rows, columns]: whole tensors of one shape, each inner list joined."""


class Checkpoint:
    """Safetensors files of one directory, single or sharded with an index.

    Files stay open (memory-mapped) until `close`.

    Raises:
        InputError: a missing or truncated shard, an unreadable index, a tensor that is absent
            or has another shape or dtype: file, tensor, value and remedy are named.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._files: dict[Path, Any] = {}
        self._shard_of = self._read_layout()

    def _read_layout(self) -> dict[str, Path]:
        index = self.directory / "model.safetensors.index.json"
        if index.is_file():
            return {name: self.directory / shard for name, shard in _weight_map(index).items()}
        shards = sorted(self.directory.glob("*.safetensors"))
        if len(shards) != 1:
            remedy = "one .safetensors file, or model.safetensors.index.json, is needed"
            raise InputError(self.directory, "number of .safetensors files", len(shards), remedy)
        return dict.fromkeys(self._open(shards[0]).keys(), shards[0])

    def _open(self, shard: Path) -> Any:
        if shard not in self._files:
            if not shard.is_file():
                remedy = "the index names it: copy the missing shard"
                raise InputError(shard, "shard", "absent", remedy)
            try:
                self._files[shard] = safe_open(str(shard), framework="pt")
            except (SafetensorError, OSError) as error:
                size = shard.stat().st_size
                remedy = f"the file is truncated or no safetensors file ({error}): copy it again"
                raise InputError(shard, "size in bytes", size, remedy) from error
        return self._files[shard]

    @property
    def names(self) -> Iterable[str]:
        """Names of all tensors."""
        return self._shard_of.keys()

    @property
    def shards(self) -> list[Path]:
        """Files that hold a tensor, whether they exist or not."""
        return sorted(set(self._shard_of.values()))

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`."""
        return name in self._shard_of

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """dtype as the file names it, and shape, of a tensor that `has`."""
        header = self._open(self._shard_of[name]).get_slice(name)
        return header.get_dtype(), tuple(header.get_shape())

    def read(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        rows: Span | None = None,
        columns: Span | None = None,
    ) -> torch.Tensor:
        """See TensorSource."""
        shard = self._shard_of.get(name)
        if shard is None:
            remedy = f"the configuration needs it{near_names(name, self._shard_of)}"
            raise InputError(self.directory, f"tensor {name}", "absent", remedy)
        handle = self._open(shard)
        try:
            header = handle.get_slice(name)
        except SafetensorError as error:
            remedy = "the index names a shard without this tensor: copy index and shard again"
            raise InputError(shard, f"tensor {name}", "absent", remedy) from error
        _check_header(shard, name, header, dtype, shape)
        tensor = _sliced(handle, name, header, rows, columns)
        return tensor if tensor.dtype == _TORCH_DTYPES[dtype] else tensor.view(torch.uint8)

    def stack(
        self, names: Sequence[Sequence[str]], dtype: str, shape: tuple[int, int]
    ) -> torch.Tensor:
        """See TensorSource."""
        rows = shape[0]
        joined = torch.empty(len(names), len(names[0]) * rows, shape[1], dtype=_TORCH_DTYPES[dtype])
        for index, parts in enumerate(names):
            for place, name in enumerate(parts):
                span = slice(place * rows, (place + 1) * rows)
                joined[index, span] = self.read(name, dtype, shape)
        return joined

    def close(self) -> None:
        """Let go of the files; tensors that were read whole keep their mapping."""
        self._files.clear()


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(index, "weight_map", repr(error), "repair or copy the index") from error
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise InputError(index, "weight_map", type(weight_map).__name__, "name -> shard is needed")
    return weight_map


def _check_header(shard: Path, name: str, header: Any, dtype: str, shape: tuple[int, ...]) -> None:
    if header.get_dtype() != dtype:
        remedy = f"dtype {dtype} is needed"
        raise InputError(shard, f"dtype of {name}", header.get_dtype(), remedy)
    found = tuple(header.get_shape())
    if found != shape:
        remedy = f"config.json implies {list(shape)}"
        raise InputError(shard, f"shape of {name}", list(found), remedy)


def _sliced(
    handle: Any, name: str, header: Any, rows: Span | None, columns: Span | None
) -> torch.Tensor:
    # A whole tensor stays a view of the mapped file; a slice is copied, and only its bytes read.
    if rows is None and columns is None:
        whole: torch.Tensor = handle.get_tensor(name)
        return whole
    row_slice = slice(*rows) if rows else slice(None)
    part = header[row_slice] if columns is None else header[row_slice, slice(*columns)]
    copied: torch.Tensor = part.contiguous()
    return copied


class MetaCheckpoint:
    """Stands in for the files on the meta device: shapes without bytes."""

    def has(self, name: str) -> bool:  # noqa: ARG002 - a real checkpoint holds every tensor
        """Everything is there."""
        return True

    def read(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        rows: Span | None = None,
        columns: Span | None = None,
    ) -> torch.Tensor:
        """An empty tensor of the slice's shape.

        Raises:
            InputError: a slice that does not lie inside the tensor.
        """
        sliced = list(shape)
        for axis, span in ((0, rows), (1, columns)):
            if span is None:
                continue
            if not 0 <= span[0] < span[1] <= shape[axis]:
                remedy = f"it must lie within 0..{shape[axis]}"
                raise InputError("layout", f"slice of axis {axis} of {name}", span, remedy)
            sliced[axis] = span[1] - span[0]
        return torch.empty(sliced, dtype=_TORCH_DTYPES[dtype], device="meta")

    def stack(
        self, names: Sequence[Sequence[str]], dtype: str, shape: tuple[int, int]
    ) -> torch.Tensor:
        """An empty tensor of the joined shape."""
        joined = (len(names), len(names[0]) * shape[0], shape[1])
        return torch.empty(joined, dtype=_TORCH_DTYPES[dtype], device="meta")
