"""Writes the files of a tiny checkpoint: sharded safetensors, index, configuration, tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tiny_checkpoints.config_files import model_config, tokenizer_config, write_json
from tiny_checkpoints.encode import bf16_bytes, fp4_rows, fp8_rows, fp8_tiles
from tiny_checkpoints.geometry import Geometry
from tiny_checkpoints.inventory import Unit, inventory
from tiny_checkpoints.recipe import ParameterSource
from tiny_checkpoints.safetensors_file import StoredTensor, write_shard
from tiny_checkpoints.tokenizer import build_tokenizer
from tiny_checkpoints.variants import Variant

__all__ = ["INDEX_FILE", "Source", "geometry_of", "shard_tensors", "shards_of", "write_checkpoint"]


class Source(Protocol):
    """Gives parameters their values."""

    def values(self, unit: Unit) -> npt.NDArray[np.float64]:
        """A parameter in fp64, before it is rounded to its stored form."""

    def table_exponents(self, unit: Unit) -> npt.NDArray[np.int32]:
        """Scale exponents [rows, W/32] of an Engram table."""


INDEX_FILE = "model.safetensors.index.json"


def write_checkpoint(variant: Variant, directory: Path, source: Source | None = None) -> None:
    """Write every file of `variant` into an existing directory.

    Args:
        source: of the parameters; by default they are drawn by the variant's recipe.
    """
    tokenizer = build_tokenizer(variant.vocab_size)
    config = model_config(variant, tokenizer)
    write_json(directory / "config.json", config)
    write_json(directory / "tokenizer.json", tokenizer.as_json())
    write_json(directory / "tokenizer_config.json", tokenizer_config(tokenizer))
    write_json(
        directory / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "temperature": 1.0},
    )
    shards = shards_of(geometry_of(variant))
    source = source or ParameterSource(variant)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for file_name, units in shards.items():
        tensors = shard_tensors(source, units)
        write_shard(directory / file_name, tensors)
        weight_map |= dict.fromkeys(tensors, file_name)
        total_bytes += sum(tensor.data.nbytes for tensor in tensors.values())
    write_json(
        directory / INDEX_FILE,
        {
            "metadata": {"total_size": total_bytes},
            "weight_map": {name: weight_map[name] for name in sorted(weight_map)},
        },
    )


def geometry_of(variant: Variant) -> Geometry:
    """The dimensions of a variant, by way of its configuration."""
    config = model_config(variant, build_tokenizer(variant.vocab_size))
    return Geometry.from_config(config["text_config"], variant.name)


def shards_of(geometry: Geometry) -> dict[str, list[Unit]]:
    """File name -> its units: embedding, one file a layer, head, draft stages, Engram last."""
    parts: dict[str, list[Unit]] = {}
    for unit in sorted(inventory(geometry), key=lambda unit: unit.part.startswith("engram")):
        parts.setdefault(unit.part, []).append(unit)
    count = len(parts)
    return {
        f"model-{number:05d}-of-{count:05d}.safetensors": units
        for number, units in enumerate(parts.values(), start=1)
    }


def shard_tensors(source: Source, units: list[Unit]) -> dict[str, StoredTensor]:
    """Draw and encode the tensors of one shard."""
    tensors: dict[str, StoredTensor] = {}
    for unit in units:
        tensors |= _encoded(source, unit)
    return tensors


def _encoded(source: Source, unit: Unit) -> Mapping[str, StoredTensor]:
    values = source.values(unit)
    if unit.form == "bf16":
        arrays: tuple[npt.NDArray[Any], ...] = (bf16_bytes(values),)
    elif unit.form == "f32":
        arrays = (values.astype(np.float32),)
    elif unit.form == "fp8":
        arrays = fp8_tiles(values)
    elif unit.form == "fp4":
        arrays = fp4_rows(values)
    else:
        arrays = fp8_rows(values, source.table_exponents(unit))
    return {
        spec.name: StoredTensor(spec.dtype, spec.shape, array)
        for spec, array in zip(unit.tensors(), arrays, strict=True)
    }
