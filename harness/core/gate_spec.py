"""What a gate looks at: which metrics, with which thresholds (measurement.md §6)."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.core.errors import UsageError

__all__ = ["MAX_PRIMARY_METRICS", "GateSpec", "PrimaryMetric"]

MAX_PRIMARY_METRICS = 8


@dataclass(frozen=True, slots=True)
class PrimaryMetric:
    """One timing metric that may fail the gate.

    Attributes:
        name: dotted metric name, exactly as in the records.
        floor: smallest absolute change that counts, in the metric's unit.
        threshold: smallest relative change that counts (0.03 = 3 %); the gate takes the larger
            of this and 3 standard errors of the A/A effect.
    """

    name: str
    floor: float
    threshold: float = 0.03

    def __post_init__(self) -> None:
        if not self.name or any(sign in self.name for sign in "*?["):
            raise UsageError(f"primary metric {self.name!r}: a primary metric is named exactly")
        if self.floor < 0 or not 0 < self.threshold < 1:
            raise UsageError(
                f"primary metric {self.name!r}: floor={self.floor} is at least 0 and "
                f"threshold={self.threshold} lies between 0 and 1"
            )


@dataclass(frozen=True, slots=True)
class GateSpec:
    """A file of suites/gates.

    Attributes:
        name: the file's stem.
        deterministic: shell patterns of deterministic metrics that are gated exactly; what no
            pattern names is advisory.
        primary: at most 8 timing metrics; every other timing is advisory.
        min_pairs: interleaved pairs of runs below which a timing is INCONCLUSIVE.
        alpha: level of the permutation test after Holm over the primary metrics.
        timing_counts: whether timing verdicts count towards the exit code at all; where False
            they are still computed and shown.
        description: one line for people.
    """

    name: str
    deterministic: tuple[str, ...] = ()
    primary: tuple[PrimaryMetric, ...] = ()
    min_pairs: int = 10
    alpha: float = 0.05
    timing_counts: bool = True
    description: str = ""

    def __post_init__(self) -> None:
        if not self.deterministic and not self.primary:
            raise UsageError(f"gate {self.name!r} judges nothing")
        if len(self.primary) > MAX_PRIMARY_METRICS:
            raise UsageError(
                f"gate {self.name!r} names {len(self.primary)} primary metrics; at most "
                f"{MAX_PRIMARY_METRICS} keep their power after Holm"
            )
        names = [metric.name for metric in self.primary]
        if len(set(names)) != len(names):
            raise UsageError(f"gate {self.name!r} names a primary metric twice")
        if self.min_pairs < 2 or not 0 < self.alpha < 1:
            raise UsageError(
                f"gate {self.name!r}: min_pairs={self.min_pairs} is at least 2 and "
                f"alpha={self.alpha} lies between 0 and 1"
            )

    def gates_exactly(self, metric_name: str) -> bool:
        """Whether a deterministic metric of this name counts towards the verdict."""
        return any(fnmatchcase(metric_name, pattern) for pattern in self.deterministic)

    def primary_named(self, metric_name: str) -> PrimaryMetric | None:
        """The primary metric of this name, or None where it is advisory."""
        return next((item for item in self.primary if item.name == metric_name), None)
