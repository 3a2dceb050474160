"""Reading and writing safetensors bytes, deterministically and with clear errors."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.core.errors import InputError

__all__ = ["DTYPE_BYTES", "Shard", "StoredTensor", "tensors_digest", "write_shard"]

DTYPE_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
_ALIGNMENT = 8
_PART_BYTES = 1 << 26
_MAX_HEADER_BYTES = 100_000_000
_RESTORE = "restore the file or make the checkpoint again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its file holds it: dtype string, shape, and its raw little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]

    def __post_init__(self) -> None:
        expected = math.prod(self.shape) * DTYPE_BYTES[self.dtype]
        if self.data.nbytes != expected:
            raise ValueError(f"{self.dtype}{list(self.shape)}: {self.data.nbytes} bytes")


def write_shard(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """Write one safetensors file: widest dtypes first, then by name, so data is aligned."""
    names = sorted(tensors, key=lambda name: (-DTYPE_BYTES[tensors[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.data.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(_little_endian(tensors[name].data))


def tensors_digest(tensors: Mapping[str, StoredTensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in name order; layout in the file is free."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{list(tensor.shape)}|".encode())
        digest.update(_little_endian(tensor.data))
    return digest.hexdigest()


def _little_endian(data: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(data.astype(data.dtype.newbyteorder("<"))).tobytes()


class Shard:
    """A safetensors file opened by its header; tensor data is read on demand.

    Args:
        path: the file.

    Raises:
        InputError: absent, truncated, or a header that is not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputError(path, "file", "absent", f"a shard is missing; {_RESTORE}")
        self._num_bytes = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, self._num_bytes - 8):
                raise InputError(
                    path, "header length", header_bytes, f"truncated or not safetensors; {_RESTORE}"
                )
            text = file.read(header_bytes)
        self._data_start = 8 + header_bytes
        self.entries = self._parsed(text)

    def _parsed(self, text: bytes) -> dict[str, dict[str, Any]]:
        try:
            header = json.loads(text)
        except ValueError as error:
            raise InputError(self.path, "header", str(error), _RESTORE) from error
        if not isinstance(header, dict):
            raise InputError(self.path, "header", type(header).__name__, _RESTORE)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            self._check_extent(name, entry)
        return header

    def _check_extent(self, name: str, entry: Any) -> None:
        try:
            begin, end = entry["data_offsets"]
            num_values, dtype = math.prod(entry["shape"]), entry["dtype"]
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(self.path, f"tensor {name}", entry, _RESTORE) from error
        if not 0 <= begin <= end or self._data_start + end > self._num_bytes:
            raise InputError(
                self.path,
                f"tensor {name}",
                f"bytes {begin}..{end} of a file of {self._num_bytes}",
                f"the file is truncated; {_RESTORE}",
            )
        width = DTYPE_BYTES.get(dtype)
        if width is not None and end - begin != num_values * width:
            raise InputError(
                self.path,
                f"tensor {name}",
                f"{end - begin} bytes for {dtype}{entry['shape']}",
                _RESTORE,
            )

    def num_bytes_of(self, name: str) -> int:
        """Size of one tensor's data."""
        begin, end = self.entries[name]["data_offsets"]
        return int(end - begin)

    def read(self, name: str) -> StoredTensor:
        """One tensor's bytes: uint16 patterns for BF16, uint8 for the 8-bit types.

        Raises:
            InputError: a dtype this architecture does not use.
        """
        entry = self.entries[name]
        parts = list(self.read_parts(name))
        data = np.concatenate(parts) if parts else np.zeros(0, self._storage(name))
        return StoredTensor(entry["dtype"], tuple(entry["shape"]), data.reshape(entry["shape"]))

    def read_parts(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """The same values, flat, in pieces of at most 64 MiB: a table may have 90 GiB."""
        begin, end = self.entries[name]["data_offsets"]
        for data in self._byte_parts(begin, end):
            yield np.frombuffer(data, self._storage(name))

    def row_bytes(self, name: str, first: int, last: int) -> Iterator[bytes]:
        """Raw bytes of rows first..last-1 (the leading axis), in pieces of at most 64 MiB.

        Raises:
            InputError: the file is shorter than its header says.
        """
        begin, end = self.entries[name]["data_offsets"]
        row = (end - begin) // max(1, self.entries[name]["shape"][0])
        yield from self._byte_parts(begin + first * row, begin + last * row)

    def _byte_parts(self, begin: int, end: int) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self._data_start + begin)
            for offset in range(begin, end, _PART_BYTES):
                wanted = min(_PART_BYTES, end - offset)
                data = file.read(wanted)
                if len(data) != wanted:
                    raise InputError(
                        self.path, "size in bytes", offset + len(data), f"it shrank; {_RESTORE}"
                    )
                yield data

    def _storage(self, name: str) -> str:
        dtype = self.entries[name]["dtype"]
        if dtype not in DTYPE_BYTES:
            raise InputError(
                self.path, f"tensor {name}, dtype", dtype, f"one of {sorted(DTYPE_BYTES)}"
            )
        return {"F32": "<f4", "BF16": "<u2"}.get(dtype, "u1")
