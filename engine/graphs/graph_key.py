"""What compiled graphs depend on, part by part (see engine.graphs.graph_store)."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from engine.config.model import ModelConfig
from engine.weights.layout import RankLayout
from harness.core.numerics import Numerics

__all__ = ["graph_key", "source_digest"]

_OWN_PACKAGES = ("engine.model", "engine.graphs", "engine.cache", "harness.core")
_OWN_MODULES = ("engine.ops", "engine.precision")


def graph_key(
    config: ModelConfig, layout: RankLayout, numerics: Numerics, ops: tuple[str, ...]
) -> Mapping[str, str]:
    """Readable parts; buckets and kinds name the graphs within a key.

    Args:
        ops: targets of the op tables; the folder of each is part of the source.
    """
    packages = [*_OWN_PACKAGES, *(target.partition(":")[0].rpartition(".")[0] for target in ops)]
    files = [file for package in packages for file in _sources_of(package)]
    files += [Path(str(importlib.import_module(name).__file__)) for name in _OWN_MODULES]
    return {
        "format": "1",
        "source": source_digest(files),
        "config": repr(config),
        # Ranks share a directory: inductor tells their graphs apart where they differ.
        "layout": f"{layout.size} ranks, {layout.num_batches} batches",
        "numerics": repr(numerics),
        "ops": " ".join(ops),
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }


def source_digest(files: Iterable[Path]) -> str:
    """Digest of the files' names and contents; a byte more or less makes another."""
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        digest.update(f"{file.parent.name}/{file.name}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _sources_of(package: str) -> list[Path]:
    module = importlib.import_module(package)
    return [file for place in module.__path__ for file in Path(place).glob("*.py")]
