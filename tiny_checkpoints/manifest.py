"""The hashes a tiny checkpoint must have, on every machine."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path

from harness.core.errors import InputError
from harness.core.shard_sums import SUMS_FILE, has_sums, verify_sums
from tiny_checkpoints.recipe import ParameterSource
from tiny_checkpoints.safetensors_file import Shard, StoredTensor, tensors_digest
from tiny_checkpoints.stored import stored_directory
from tiny_checkpoints.variants import variant_named
from tiny_checkpoints.writer import geometry_of, shard_tensors, shards_of

__all__ = [
    "MANIFEST_FILE",
    "fingerprint",
    "manifest_of",
    "measured_hashes",
    "recognised_variant",
    "verify",
]

MANIFEST_FILE = "MANIFEST.json"
_FULL_HASH_MAX_BYTES = 1 << 30
_MAKE_AGAIN = "delete the directory and run `neuron-harness checkpoint make`"


def manifest_of(variant: str) -> dict[str, str]:
    """File name -> SHA-256 as committed: of a shard's names, dtypes, shapes and tensor bytes, of
    every other file's bytes.

    Raises:
        UsageError: unknown variant.
    """
    name = variant_named(variant).name
    return dict(_committed()[name])


def measured_hashes(directory: Path) -> dict[str, str]:
    """The same hashes of what is on disk, for every file but those of hashes (SHA256SUMS)."""
    return {path.name: _file_hash(path) for path in _content_files(directory)}


def fingerprint(directory: Path | str) -> str:
    """16 hexadecimal digits that identify a checkpoint in records.

    Over all content up to 1 GiB; beyond, over configuration files, shard headers and sizes,
    because reading hundreds of GiB to name a run is no option.
    """
    files = _content_files(Path(directory))
    whole = sum(path.stat().st_size for path in files) <= _FULL_HASH_MAX_BYTES
    digest = hashlib.sha256()
    for path in files:
        is_shard = path.suffix == ".safetensors"
        content = _file_hash(path) if whole or not is_shard else _header_hash(path)
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()[:16]


def verify(directory: Path | str, variant: str) -> None:
    """Compare a directory with the manifest of `variant`, and SHA256SUMS with the shards.

    Raises:
        InputError: a file is missing, extra or different; names the file and, in a shard, the
            first tensor that differs, with both hashes and the remedy.
    """
    place = Path(directory)
    expected = manifest_of(variant)
    if place.exists() and not place.is_dir():
        raise InputError(place, "directory", "a file", f"name a place where {variant} may stand")
    if not place.is_dir():
        raise InputError(place, "directory", "absent", f"make {variant} there first")
    missing = sorted(set(expected) - {path.name for path in place.iterdir()})
    if missing:
        raise InputError(place, missing[0], "absent", f"not a whole {variant}; {_MAKE_AGAIN}")
    measured = measured_hashes(place)
    for name, digest in expected.items():
        if measured[name] != digest:
            raise InputError(
                place / name,
                _difference(place / name, variant),
                measured[name],
                f"{variant} has {digest}; {_MAKE_AGAIN}",
            )
    extra = sorted(set(measured) - set(expected))
    if extra:
        raise InputError(place, extra[0], "present", f"not a file of {variant}; remove it")
    if has_sums(place):
        verify_sums(place, place.glob("*.safetensors"))


def recognised_variant(directory: Path | str) -> str | None:
    """Which tiny checkpoint's config.json this is, byte for byte; None if none of ours."""
    path = Path(directory) / "config.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return next(
        (name for name, files in _committed().items() if files["config.json"] == digest), None
    )


def _committed() -> dict[str, dict[str, str]]:
    text = resources.files("tiny_checkpoints").joinpath(MANIFEST_FILE).read_text("utf-8")
    content: dict[str, dict[str, str]] = json.loads(text)
    return content


def _content_files(directory: Path) -> list[Path]:
    files = (path for path in directory.iterdir() if path.is_file())
    return sorted(path for path in files if path.name != SUMS_FILE)


def _file_hash(path: Path) -> str:
    if path.suffix != ".safetensors":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    shard = Shard(path)
    return tensors_digest({name: shard.read(name) for name in shard.entries})


def _header_hash(path: Path) -> str:
    entries = json.dumps(Shard(path).entries, sort_keys=True)
    return hashlib.sha256(f"{path.stat().st_size} {entries}".encode()).hexdigest()


def _difference(path: Path, variant: str) -> str:
    """What differs in a file: the first tensor whose bytes are not those of the variant."""
    if path.suffix != ".safetensors":
        return "sha256"
    expected, shard = _expected_tensors(path.name, variant), Shard(path)
    if set(shard.entries) != set(expected):
        return f"tensor {min(set(shard.entries) ^ set(expected))}, sha256 of the shard"
    for name, tensor in expected.items():
        if tensors_digest({name: tensor}) != tensors_digest({name: shard.read(name)}):
            return f"tensor {name}, sha256 of the shard"
    return "sha256"


def _expected_tensors(file_name: str, variant: str) -> dict[str, StoredTensor]:
    """A shard's tensors, stored or drawn again."""
    chosen = variant_named(variant)
    if chosen.is_trained:
        shard = Shard(stored_directory(chosen) / file_name)
        return {name: shard.read(name) for name in shard.entries}
    return shard_tensors(ParameterSource(chosen), shards_of(geometry_of(chosen))[file_name])
