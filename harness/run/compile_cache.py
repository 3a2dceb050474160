"""The compiler's caches on disk, and which versions filled them.

A cache of another compiler serves nothing, and a first run then compiles for half an hour in the
middle of a measurement. `neuron-harness compile` stamps a cache it has filled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.record import strict_json
from harness.run.environment import sdk_state

__all__ = ["STAMP_FILE", "CompileCache", "compile_caches", "compiler_versions"]

STAMP_FILE = "neuron-harness-compiled.json"
_CACHES = (
    ("neff cache", "TORCH_NEURONX_NEFF_CACHE_DIR", "/tmp/neff_cache"),
    ("compile cache", "NEURON_COMPILE_CACHE_URL", "/var/tmp/neuron-compile-cache"),
)
_STAMPED = ("neuronx-cc", "torch-neuronx", "nki")


@dataclass(frozen=True, slots=True)
class CompileCache:
    """One cache.

    Attributes:
        name: for people.
        variable: environment variable that places it.
        place: a directory, or a URL such as s3://...
    """

    name: str
    variable: str
    place: str

    @property
    def is_local(self) -> bool:
        """Whether this host can look into it."""
        return "://" not in self.place

    @property
    def num_entries(self) -> int:
        """Entries of a local cache, the stamp not counted; 0 where it does not exist."""
        path = Path(self.place)
        if not self.is_local or not path.is_dir():
            return 0
        return sum(1 for entry in path.iterdir() if entry.name != STAMP_FILE)

    def is_writable(self) -> bool:
        """Whether it, or the directory it would be made in, can be written."""
        path = Path(self.place)
        while not path.exists() and path != path.parent:
            path = path.parent
        return path.is_dir() and os.access(path, os.W_OK | os.X_OK)

    def stamped(self) -> Mapping[str, str] | None:
        """Versions that filled it; None without a stamp (or with one that is no JSON object)."""
        try:
            found = json.loads((Path(self.place) / STAMP_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def stamp(self) -> None:
        """Note the present versions, whole or not at all."""
        path = Path(self.place)
        path.mkdir(parents=True, exist_ok=True)
        partial = path / f".{STAMP_FILE}.{os.getpid()}"
        partial.write_text(strict_json(compiler_versions()) + "\n", encoding="utf-8")
        partial.replace(path / STAMP_FILE)


def compile_caches(environment: Mapping[str, str] | None = None) -> tuple[CompileCache, ...]:
    """torch-neuronx's NEFF cache and the compiler's own, where the variables place them."""
    found = os.environ if environment is None else environment
    return tuple(
        CompileCache(name, variable, found.get(variable) or default)
        for name, variable, default in _CACHES
    )


def compiler_versions() -> dict[str, str]:
    """Distribution -> version, "" where it is not there."""
    return {name: sdk_state(name)[1] for name in _STAMPED}
