"""The vectors of DeepSeek's own inference code (tests/data/oracle/README.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DIRECTORY", "NAMES", "Vectors", "vectors"]

DIRECTORY = Path(__file__).parents[1] / "data" / "oracle"
NAMES = ("long", "stress", "steady_mtp")


@dataclass(frozen=True)
class Vectors:
    """One npz file.

    Attributes:
        checkpoint: directory.
        ids: prompt and generated ids, one for each row of `logits`.
        prefill: how many of them the official code ran in its first call.
        arrays: the file as it is.
    """

    checkpoint: Path
    ids: list[int]
    prefill: int
    arrays: dict[str, npt.NDArray[Any]]


def vectors(name: str, mode: str) -> Vectors:
    """`mode` is "exact" or "quantised"."""
    with np.load(DIRECTORY / f"{name}_{mode}.npz") as file:
        arrays = dict(file)
    ids = arrays["ids"].tolist() + arrays["generated"].tolist()
    return Vectors(DIRECTORY / name, ids, int(arrays["prefill"]), arrays)
