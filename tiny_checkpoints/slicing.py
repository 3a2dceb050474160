"""Cuts a small checkpoint of real weights out of a large one, tensor by tensor.

Random tiny models pass where real weights fail: their scales, outliers and routing are not those
of a trained model. A slice is a model of its own, with fewer layers and experts, on which a CPU
reference and a device can be compared; its text is not the source's text.

The slice is written beside its destination and takes its name only when it is whole and verified.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, UsageError
from harness.core.shard_sums import write_sums
from tiny_checkpoints.config_files import write_json
from tiny_checkpoints.geometry import Geometry
from tiny_checkpoints.inspection import Inspection, inspect_checkpoint, located_tensors
from tiny_checkpoints.inventory import TensorSpec, inventory
from tiny_checkpoints.safetensors_file import DTYPE_BYTES, Shard
from tiny_checkpoints.slice_plan import SlicePlan, plan_slice
from tiny_checkpoints.writer import INDEX_FILE

__all__ = ["PROVENANCE_FILE", "Sliced", "is_slice_of", "slice_checkpoint"]

PROVENANCE_FILE = "slice.json"
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "engram_token_map.json",
)
_ALIGNMENT = 8
_PARTIAL = re.compile(r"^\..+\.partial-(\d+)$")

# Called with bytes written and bytes of the whole slice.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sliced:
    """A finished slice."""

    directory: Path
    inspection: Inspection
    notices: tuple[str, ...]


def slice_checkpoint(
    source: Path,
    destination: Path,
    layers: Sequence[int],
    experts: Sequence[int],
    *,
    engram_vocab_size: int = 0,
    progress: Progress = lambda *_: None,
) -> Sliced:
    """Write the slice; memory stays below 64 MiB a tensor whatever the shards' size.

    Args:
        source: a checkpoint with or without an index; only headers and kept rows are read.
        destination: does not exist yet.
        layers, experts, engram_vocab_size: see `plan_slice`.

    Raises:
        UsageError: the selection is no model, the destination exists, the disk is too small.
        InputError: the source is damaged.
    """
    if destination.exists():
        raise UsageError(f"{destination} exists: remove it or choose another directory")
    inspect_checkpoint(source, read_data=False)
    file = source / "config.json"
    plan = plan_slice(json.loads(file.read_text("utf-8")), file, layers, experts, engram_vocab_size)
    located = located_tensors(source)
    shards = _shards_of(plan, located)
    partial = _fresh_directory(destination)
    try:
        total = sum(_num_bytes(spec) for specs in shards.values() for spec in specs)
        _check_space(partial, total)
        _write_shards(partial, shards, plan, located, lambda done: progress(done, total))
        _write_rest(partial, source, plan, shards, total, engram_vocab_size)
        inspection = inspect_checkpoint(partial)
        _sync_directory(partial)
        partial.rename(destination)
        _sync_directory(destination.parent)
    except OSError as error:
        raise UsageError(f"{destination}: cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Sliced(destination, inspection, plan.notices)


def is_slice_of(
    destination: Path,
    source: Path,
    layers: Sequence[int],
    experts: Sequence[int],
    engram_vocab_size: int,
) -> bool:
    """Whether a directory is the finished slice of this source by this selection."""
    try:
        found = json.loads((destination / PROVENANCE_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    wanted = {
        "source": source.name,
        "source_config": _config_hash(source),
        "engram_vocab_size": engram_vocab_size,
        "layers": list(layers),
        "experts": list(experts),
    }
    return {key: found.get(key) for key in wanted} == wanted


def _config_hash(source: Path) -> str:
    return hashlib.sha256((source / "config.json").read_bytes()).hexdigest()


def _fresh_directory(destination: Path) -> Path:
    """A hidden directory beside the destination; what killed slices left there is removed."""
    parent = destination.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f".{destination.name}.partial-*"):
            owner = _PARTIAL.match(left.name)
            if owner and not Path(f"/proc/{owner[1]}").exists():
                shutil.rmtree(left)
        partial = parent / f".{destination.name}.partial-{os.getpid()}"
        partial.mkdir()
    except OSError as error:
        raise UsageError(f"{destination}: cannot be written ({error.strerror})") from error
    return partial


def _shards_of(plan: SlicePlan, located: Mapping[str, Shard]) -> dict[str, list[TensorSpec]]:
    """File name -> its tensors: one file for each part of the model."""
    geometry = Geometry.from_config(plan.config["text_config"], "config.json of the slice")
    parts: dict[str, list[TensorSpec]] = {}
    for unit in inventory(geometry):
        # Optional tensors are there only if the source has them; others were checked before.
        present = [spec for spec in unit.tensors() if plan.source_of(spec.name)[0] in located]
        if present:
            parts.setdefault(unit.part, []).extend(present)
    count = len(parts)
    return {
        f"model-{number:05d}-of-{count:05d}.safetensors": sorted(
            specs, key=lambda spec: (-DTYPE_BYTES[spec.dtype], spec.name)
        )
        for number, specs in enumerate(parts.values(), start=1)
    }


def _num_bytes(spec: TensorSpec) -> int:
    count = DTYPE_BYTES[spec.dtype]
    for length in spec.shape:
        count *= length
    return count


def _check_space(partial: Path, total: int) -> None:
    free = shutil.disk_usage(partial).free
    if free < total * 1.02:
        raise UsageError(
            f"{partial.parent}: the slice has {total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are "
            "free; choose another disk, fewer layers, or cut Engram with --engram-vocab-size"
        )


def _write_shards(
    partial: Path,
    shards: Mapping[str, list[TensorSpec]],
    plan: SlicePlan,
    located: Mapping[str, Shard],
    tell: Callable[[int], None],
) -> None:
    done = 0
    for file_name, specs in shards.items():
        with (partial / file_name).open("wb") as out:
            out.write(_header(specs))
            for spec in specs:
                done += _copy(out, spec, plan, located)
                tell(done)
            out.flush()
            os.fsync(out.fileno())


def _header(specs: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + _num_bytes(spec)
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _copy(out: Any, spec: TensorSpec, plan: SlicePlan, located: Mapping[str, Shard]) -> int:
    """One tensor's bytes from its source; returns how many."""
    name, spans = plan.source_of(spec.name)
    shard = located[name]
    rows = shard.entries[name]["shape"][0]
    written = 0
    for first, last in spans or ((0, rows),):
        for data in shard.row_bytes(name, first, last):
            written += out.write(data)
    if written != _num_bytes(spec):
        raise InputError(
            shard.path, f"tensor {name}", f"{written} bytes", f"{_num_bytes(spec)} are needed"
        )
    return written


def _write_rest(
    partial: Path,
    source: Path,
    plan: SlicePlan,
    shards: Mapping[str, list[TensorSpec]],
    total: int,
    engram_vocab_size: int,
) -> None:
    """Hashes, index, tokenizer, provenance; config.json last, which makes a checkpoint of it."""
    write_sums(partial)
    weight_map = {spec.name: file for file, specs in shards.items() for spec in specs}
    write_json(
        partial / INDEX_FILE,
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, partial / name)
    provenance = {
        "source": source.name,
        "source_config": _config_hash(source),
        "engram_vocab_size": engram_vocab_size,
        "layers": list(plan.layers),
        "experts": list(plan.experts),
        "notices": list(plan.notices),
    }
    write_json(partial / PROVENANCE_FILE, provenance)
    write_json(partial / "config.json", plan.config)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
