"""A number that a gate may judge, with its unit and direction, and the verdict on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from harness.core.status import GateStatus

__all__ = ["Direction", "GateVerdict", "Metric", "MetricKind"]


class Direction(Enum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"
    EQUAL = "equal"


class MetricKind(Enum):
    """How it is gated: deterministic ones exactly, timings by statistics."""

    DETERMINISTIC = "deterministic"
    TIMING = "timing"


@dataclass(frozen=True, slots=True)
class Metric:
    """One named number with its raw samples (one per run; a deterministic metric has one).

    Attributes:
        name: dotted path, e.g. "tokens.exact.cp=2.collectives_per_step".
        values: samples; text for statuses.
        unit: "ms", "1", "status", "bytes".
    """

    name: str
    values: tuple[float | str, ...]
    unit: str
    direction: Direction
    kind: MetricKind

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"metric {self.name}: no value")
        if self.kind is MetricKind.DETERMINISTIC and len(self.values) != 1:
            raise ValueError(f"metric {self.name}: a deterministic metric has exactly one value")


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """One metric against its baseline.

    Attributes:
        effect: relative change of the estimate (0.03 = 3 % more), None where nothing compares.
        lower_bound: one-sided 95 % bound of the effect; None for deterministic metrics.
        p_value: after Holm; None for deterministic metrics.
        advisory: True where the verdict does not count towards the gate's exit code.
    """

    metric: str
    status: GateStatus
    message: str
    unit: str = ""
    baseline: float | str | None = None
    candidate: float | str | None = None
    effect: float | None = None
    lower_bound: float | None = None
    p_value: float | None = None
    num_pairs: int = 0
    advisory: bool = False

    def __post_init__(self) -> None:
        judged = (GateStatus.PASS, GateStatus.IMPROVED, GateStatus.REGRESSED)
        if self.status in judged and (self.baseline is None or self.candidate is None):
            raise ValueError(f"{self.metric}: {self.status.value} without evidence on both sides")
        for number in (self.effect, self.lower_bound, self.p_value):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{self.metric}: a verdict holds {number}")
