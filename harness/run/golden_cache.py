"""Goldens of token match on disk: what an oracle said, served only while its source is the same.

An entry is found by the content it was made from: checkpoint bytes, settings, prompt. It holds
the hash of the source that made it (engine, op tables, vocabulary of the core, torch's version).
If that source has changed the entry is refused: a golden of other code is no evidence, and to
replace it silently would hide that the reference has changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError, MissingEvidenceError, UsageError
from harness.core.record import strict_json
from harness.core.token_suite import Prompt

__all__ = ["Golden", "GoldenCache", "source_hash"]

_FORMAT = 1
# Not part of what is computed: where the checkpoint lies, and how long one may wait.
_WITHOUT = ("checkpoint", "time_limit_s")
_ARRAYS = ("token_ids", "logits", "forced_logits")


@dataclass(frozen=True, slots=True)
class Golden:
    """What an oracle said on one prompt.

    Attributes:
        logits: [N, V] of its own continuation; forced_logits: the same, teacher-forced.
        facts, counters: of the run that made it.
    """

    token_ids: tuple[int, ...]
    logits: npt.NDArray[np.floating]
    forced_logits: npt.NDArray[np.floating]
    facts: Mapping[str, float]
    counters: Mapping[str, float]


def source_hash(packages: Iterable[str]) -> str:
    """SHA-256 over every Python file of these packages, by path within them, and torch's version.

    Raises:
        UsageError: a package cannot be found.
    """
    digest = hashlib.sha256(torch.__version__.encode())
    for package in sorted(set(packages)):
        for root in _folders(package):
            for path in sorted(root.rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _folders(package: str) -> Sequence[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"package {package!r} has no source to hash")
    return [Path(folder) for folder in spec.submodule_search_locations]


class GoldenCache:
    """A directory of goldens.

    Args:
        checkpoint_id: content hash of the checkpoint (`harness.run.checkpoint_id`).
        packages: source that every golden depends on; op tables are added by their targets.
        renew: replace entries of other source instead of refusing them.
    """

    def __init__(
        self, directory: Path, checkpoint_id: str, packages: Sequence[str], *, renew: bool = False
    ) -> None:
        self._directory = directory
        self._checkpoint_id = checkpoint_id
        self._packages = tuple(packages)
        self._renew = renew
        self._hashes: dict[tuple[str, ...], str] = {}

    def load(self, settings: EngineSettings, prompt: Prompt) -> Golden | None:
        """The entry, or None where there is none (or an old one is to be renewed).

        Raises:
            MissingEvidenceError: the entry was made by other source.
            InputError: the file is damaged.
        """
        path = self._path(settings, prompt)
        if not path.exists():
            return None
        meta, arrays = _read(path)
        if meta["source"] != self._source(settings):
            if self._renew:
                return None
            raise MissingEvidenceError(
                f"{path}: the golden of {settings.label!r} on prompt {prompt.name!r} was made by "
                "other source than today's reference; look at what changed, then renew it with "
                "--renew-goldens"
            )
        return Golden(
            tuple(int(one) for one in arrays["token_ids"]),
            arrays["logits"],
            arrays["forced_logits"],
            meta["facts"],
            meta["counters"],
        )

    def save(self, settings: EngineSettings, prompt: Prompt, golden: Golden) -> Path:
        """Write an entry whole or not at all.

        Raises:
            UsageError: the directory cannot be written.
        """
        arrays: dict[str, Any] = {
            "token_ids": np.asarray(golden.token_ids, dtype=np.int64),
            "logits": golden.logits,
            "forced_logits": golden.forced_logits,
        }
        meta = {
            "format": _FORMAT,
            "key": self._key(settings, prompt),
            "source": self._source(settings),
            "digest": _digest(arrays),
            "facts": golden.facts,
            "counters": golden.counters,
        }
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer, meta=np.frombuffer(strict_json(meta).encode(), np.uint8), **arrays
        )
        path = self._path(settings, prompt)
        beside = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(buffer.getvalue())
            beside.replace(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
        finally:
            beside.unlink(missing_ok=True)
        return path

    def _path(self, settings: EngineSettings, prompt: Prompt) -> Path:
        key = strict_json(self._key(settings, prompt))
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()}.npz"

    def _key(self, settings: EngineSettings, prompt: Prompt) -> dict[str, Any]:
        chosen = {
            item.name: getattr(settings, item.name)
            for item in dataclasses.fields(settings)
            if item.name not in _WITHOUT
        }
        drawn = {"ids": prompt.ids, "length": prompt.length, "seed": prompt.seed}
        return {
            "format": _FORMAT,
            "checkpoint": self._checkpoint_id,
            "settings": chosen,
            "prompt": drawn | {"max_tokens": prompt.max_tokens},
        }

    def _source(self, settings: EngineSettings) -> str:
        tables = {target.partition(":")[0].partition(".")[0] for target in settings.ops}
        packages = tuple(sorted({*self._packages, *tables}))
        if packages not in self._hashes:
            self._hashes[packages] = source_hash(packages)
        return self._hashes[packages]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    try:
        # Read whole first: numpy leaves a file open that is no archive.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            meta = json.loads(file["meta"].tobytes())
            arrays = {name: file[name] for name in _ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(path, "content", str(error), "a damaged golden; delete it") from error
    if meta.get("digest") != _digest(arrays):
        raise InputError(path, "digest", meta.get("digest"), "a damaged golden; delete it")
    return meta, arrays


def _digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in _ARRAYS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
