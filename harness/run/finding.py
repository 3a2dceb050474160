"""One fact the doctor found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Level"]


class Level(Enum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine.

    Attributes:
        name: what was looked at.
        value: what was found.
        level: PROBLEM where something the harness needs is wrong or missing.
        remedy: what to do; empty only where nothing is to be done.
    """

    name: str
    value: str
    level: Level
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level is Level.PROBLEM and not self.remedy:
            raise ValueError(f"{self.name}: a problem without a remedy")
