"""Vectors of the official inference code (tests/data/oracle) and small edits of checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.core.engine_face import EngineSettings

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
NAMES = ("steady_mtp", "long", "stress")


def directory(name: str) -> Path:
    return ORACLE / name


def vectors(name: str, numerics: str) -> dict[str, npt.NDArray[Any]]:
    with np.load(ORACLE / f"{name}_{numerics}.npz") as archive:
        return {key: archive[key] for key in archive.files}


def all_ids(name: str, numerics: str) -> list[int]:
    """Prompt and greedy continuation: every row that `logits` has."""
    arrays = vectors(name, numerics)
    return [*arrays["ids"].tolist(), *arrays["generated"].tolist()]


def settings(name: str = "steady_mtp", **changes: Any) -> EngineSettings:
    defaults = {"checkpoint": str(directory(name)), "numerics": "exact", "num_threads": 1}
    return EngineSettings(**{**defaults, **changes})


def config_values(name: str = "steady_mtp") -> dict[str, Any]:
    values: dict[str, Any] = json.loads((directory(name) / "config.json").read_text())
    return values


def edited_config(target: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A config.json like steady_mtp's, changed by `edit`."""
    values = config_values()
    edit(values)
    file = target / "config.json"
    file.write_text(json.dumps(values))
    return file


def copied_checkpoint(name: str, target: Path) -> Path:
    """A writable copy of an oracle checkpoint."""
    copy = target / name
    shutil.copytree(directory(name), copy)
    for file in copy.iterdir():
        file.chmod(0o644)
    copy.chmod(0o755)
    return copy
