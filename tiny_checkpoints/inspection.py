"""Checks any checkpoint of this architecture: names, dtypes, shapes, NaN and scale bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.core.errors import InputError
from harness.core.suggest import near_names
from tiny_checkpoints.geometry import Geometry
from tiny_checkpoints.inventory import TensorSpec, inventory, is_ignored, is_optional
from tiny_checkpoints.safetensors_file import Shard
from tiny_checkpoints.writer import INDEX_FILE

__all__ = ["Inspection", "inspect_checkpoint", "located_tensors"]

_RESTORE = "restore the file or convert the checkpoint again"
_BAD_MEANING = {"F8_E8M0": "a scale of NaN or of 2^-127, which no quantiser writes"}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found in a checkpoint that passed.

    Attributes:
        num_tensors: text tensors of the architecture.
        num_parameters: logical weights (an FP4 byte holds two; scales do not count).
        num_bytes: of those tensors.
        num_ignored: tensors of the vision tower.
    """

    num_tensors: int
    num_parameters: int
    num_bytes: int
    num_ignored: int


def inspect_checkpoint(directory: Path | str, *, read_data: bool = True) -> Inspection:
    """Compare every tensor with what config.json says it must be.

    Args:
        directory: with config.json, safetensors and, if there is more than one shard, an index.
        read_data: also look for NaN and for scales of 2^-127 (byte 0); headers alone are read
            in seconds even from hundreds of GiB.

    Raises:
        InputError: the first thing that is wrong: file, tensor, value, remedy.
    """
    place = Path(directory)
    geometry = _geometry(place)
    units = inventory(geometry)
    expected = {spec.name: spec for unit in units for spec in unit.tensors()}
    located = _located(place)
    ignored = {name for name in located if is_ignored(name)}
    _check_names(place, set(located) - ignored, expected)
    present = {name: located[name] for name in expected if name in located}
    for name, shard in present.items():
        _check_face(shard, expected[name])
        if read_data:
            _check_data(shard, expected[name])
    return Inspection(
        num_tensors=len(present),
        num_parameters=sum(unit.num_parameters for unit in units),
        num_bytes=sum(shard.num_bytes_of(name) for name, shard in present.items()),
        num_ignored=len(ignored),
    )


def _geometry(place: Path) -> Geometry:
    config = _json_object(place / "config.json")
    text_config = config.get("text_config")
    if not isinstance(text_config, Mapping):
        raise InputError(
            place / "config.json", "text_config", text_config, "give the nested configuration"
        )
    return Geometry.from_config(text_config, place / "config.json")


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(path, "file", "absent", _RESTORE)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(path, "content", str(error), "must be JSON") from error
    if not isinstance(content, dict):
        raise InputError(path, "content", type(content).__name__, "must be a JSON object")
    return content


def located_tensors(directory: Path | str) -> dict[str, Shard]:
    """Tensor name -> the shard that holds it, of a checkpoint with or without an index.

    Raises:
        InputError: a shard is missing or broken, or index and shards disagree.
    """
    return _located(Path(directory))


def _located(place: Path) -> dict[str, Shard]:
    """Tensor name -> the shard that holds it."""
    located: dict[str, Shard] = {}
    for shard in _shards(place):
        for name in shard.entries:
            if name in located:
                raise InputError(
                    shard.path, f"tensor {name}", "present", f"also in {located[name].path.name}"
                )
            located[name] = shard
    index = place / INDEX_FILE
    if index.is_file():
        _check_index(index, located)
    return located


def _shards(place: Path) -> Iterator[Shard]:
    index = place / INDEX_FILE
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
    else:
        names = sorted(path.name for path in place.glob("*.safetensors"))
        if len(names) != 1:
            remedy = "one shard needs no index, several do"
            raise InputError(place, INDEX_FILE, f"absent with {len(names)} shards", remedy)
    for name in names:
        if re.search(r"[/\\]", name):
            raise InputError(index, "weight_map", name, "shards lie beside their index")
        yield Shard(place / name)


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = _json_object(index).get("weight_map")
    good = isinstance(weight_map, dict) and all(
        isinstance(name, str) for name in weight_map.values()
    )
    if not good or not isinstance(weight_map, dict):
        raise InputError(index, "weight_map", weight_map, "must map tensor names to file names")
    return weight_map


def _check_index(index: Path, located: Mapping[str, Shard]) -> None:
    for name, file_name in _weight_map(index).items():
        if name not in located or located[name].path.name != file_name:
            raise InputError(
                index.parent / file_name,
                f"tensor {name}",
                "absent",
                f"the index has it; {_RESTORE}",
            )


def _check_names(place: Path, found: set[str], expected: Mapping[str, TensorSpec]) -> None:
    for name in expected:
        if name not in found and not is_optional(name):
            raise InputError(place, f"tensor {name}", "absent", _RESTORE)
    for name in sorted(found - set(expected)):
        raise InputError(
            place, f"tensor {name}", "present", f"not of this model{near_names(name, expected)}"
        )


def _check_face(shard: Shard, spec: TensorSpec) -> None:
    entry = shard.entries[spec.name]
    for field, found, wanted in (
        ("dtype", entry["dtype"], spec.dtype),
        ("shape", list(entry["shape"]), list(spec.shape)),
    ):
        if found != wanted:
            raise InputError(
                shard.path, f"tensor {spec.name}, {field}", found, f"config.json wants {wanted}"
            )


def _check_data(shard: Shard, spec: TensorSpec) -> None:
    offset = 0
    for part in shard.read_parts(spec.name):
        bad = _bad_values(part, spec.dtype)
        if bad.any():
            first = int(bad.argmax())
            index = [int(axis) for axis in np.unravel_index(offset + first, spec.shape)]
            raise InputError(
                shard.path,
                f"tensor {spec.name}{index}",
                part[first].item(),
                f"{_BAD_MEANING.get(spec.dtype, 'not finite')}; {_RESTORE}",
            )
        offset += part.size


def _bad_values(data: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.bool_]:
    if dtype == "F32":
        return np.asarray(~np.isfinite(data))
    if dtype == "BF16":
        return np.asarray((data & 0x7F80) == 0x7F80)
    if dtype == "F8_E4M3":
        return np.asarray((data & 0x7F) == 0x7F)
    if dtype == "F8_E8M0":
        return np.asarray((data == 0xFF) | (data == 0))
    return np.zeros(data.shape, np.bool_)  # every I8 byte is two e2m1 codes
