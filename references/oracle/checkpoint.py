"""A safetensors reader of its own: one file or an index with shards, tensors by memory map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from harness.core.errors import InputError

__all__ = ["Checkpoint", "Floats"]

Floats = npt.NDArray[np.floating]

_DTYPES: dict[str, Any] = {
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F16": np.float16,
    "I8": np.uint8,
    "U8": np.uint8,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
}
_E4M3_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
_NIBBLE_VALUES = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
_SCALE_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)


class Checkpoint:
    """Tensors of one checkpoint by official name; values are dequantised on every call.

    Args:
        directory: holds model.safetensors.index.json with shards, or one *.safetensors file.
        dtype: of all returned values.

    Raises:
        InputError: no safetensors file, or a shard of the index is missing.
    """

    def __init__(self, directory: Path, dtype: npt.DTypeLike = np.float64) -> None:
        self.dtype = np.dtype(dtype)
        self._raw: dict[str, npt.NDArray[Any]] = {}
        for file in _shards(directory):
            self._map(file)

    def _map(self, file: Path) -> None:
        content = np.memmap(file, dtype=np.uint8, mode="r")
        header_length = int(content[:8].view("<u8")[0])
        header = json.loads(content[8 : 8 + header_length].tobytes())
        data = content[8 + header_length :]
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in _DTYPES:
                first, last = entry["data_offsets"]
                flat = np.frombuffer(data[first:last].tobytes(), _DTYPES[entry["dtype"]])
                self._raw[name] = flat.reshape(entry["shape"])

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def raw(self, name: str) -> npt.NDArray[Any]:
        """Stored numbers: bytes for fp8, fp4 and scales.

        Raises:
            InputError: the checkpoint has no such tensor.
        """
        if name not in self._raw:
            raise InputError("checkpoint", name, None, "this tensor is missing")
        return self._raw[name]

    def plain(self, name: str) -> Floats:
        """A bf16 or fp32 parameter."""
        return self.raw(name).astype(self.dtype)

    def fp8(self, name: str) -> Floats:
        """A linear weight [N, K] with 32x32 scale tiles."""
        codes = self.raw(f"{name}.weight")
        scale = _SCALE_VALUES[self.raw(f"{name}.scale")]
        rows, columns = (np.arange(length) // 32 for length in codes.shape)
        values: Floats = _E4M3_VALUES[codes] * scale[rows][:, columns]
        return values.astype(self.dtype)

    def fp4(self, name: str) -> Floats:
        """An expert weight [N, K] with a scale per row and 32 channels."""
        packed = self.raw(f"{name}.weight")
        values = np.empty((packed.shape[0], 2 * packed.shape[1]))
        values[:, 0::2] = _NIBBLE_VALUES[packed & 15]
        values[:, 1::2] = _NIBBLE_VALUES[packed >> 4]
        return (values * _channel_scales(self.raw(f"{name}.scale"))).astype(self.dtype)

    def table_rows(self, name: str, ids: npt.NDArray[np.int64]) -> Floats:
        """Rows of an fp8 table with a scale per row and 32 channels."""
        values = _E4M3_VALUES[self.raw(f"{name}.weight")[ids]]
        scaled: Floats = values * _channel_scales(self.raw(f"{name}.scale")[ids])
        return scaled.astype(self.dtype)


def _channel_scales(scale: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return np.repeat(_SCALE_VALUES[scale], 32, axis=-1)


def _shards(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        files = [directory / name for name in names]
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(directory, "*.safetensors", None, "put a checkpoint there")
    for file in files:
        if not file.exists():
            raise InputError(index, "weight_map", file.name, "this shard is missing")
    return files
