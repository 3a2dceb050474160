"""One figure of the bench, and how a piece of code is timed against another in one run."""

from __future__ import annotations

import hashlib
import inspect
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

__all__ = ["Figure", "package_hash", "paired_seconds", "source_hash"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the bench.

    Attributes:
        goal: the figure's goal in words, "" where there is none.
        met: whether the goal was met in this run; None where there is none.
        baseline: what it was measured against, with the hash of the baseline's source.
    """

    name: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None
    baseline: str = ""


def paired_seconds(
    candidate: Callable[[], object], baseline: Callable[[], object], pairs: int
) -> tuple[float, float, float]:
    """Run both in turn; medians of each and of the pairwise ratio, after one warm-up each."""
    candidate()
    baseline()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(pairs):
        ours.append(_seconds(candidate))
        theirs.append(_seconds(baseline))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return statistics.median(ours), statistics.median(theirs), ratio


def source_hash(*functions: Callable[..., object]) -> str:
    """Short digest of the source of a baseline, so that records of different ones never mix."""
    text = "\n".join(inspect.getsource(function) for function in functions)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def package_hash(package: ModuleType) -> str:
    """The same of all modules of a package."""
    digest = hashlib.sha256()
    for place in package.__path__:
        for file in sorted(Path(place).glob("*.py")):
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
