"""A median and how far it can be trusted, without assuming a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["CONFIDENCE", "Interval", "interval_of"]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its interval.

    Attributes:
        is_confidence: True for the 95 % interval of the median; False where the samples are too
            few for one and [low, high] is just their range.
    """

    median: float
    low: float
    high: float
    count: int
    is_confidence: bool

    @property
    def method(self) -> str:
        """Words for a caption or a tooltip."""
        if self.is_confidence:
            return f"95 % interval, n={self.count}"
        return f"range, n={self.count}"


def interval_of(samples: Sequence[float]) -> Interval | None:
    """The median with the narrowest symmetric pair of order statistics that covers it with 95 %.

    The pair (x_k, x_{n+1-k}) covers the population's median with probability
    1 − 2·P(Binomial(n, 1/2) < k). Below six samples no pair reaches 95 %, and the range is given
    under its own name. None where nothing was measured.
    """
    if not samples:
        return None
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (ordered[0], ordered[-1])
    return Interval(median(ordered), low, high, len(ordered), is_confidence=rank > 0)


def _rank(count: int) -> int:
    """Largest k with coverage of at least 95 %; 0 where there is none. Exact integers."""
    rank, term, tail = 0, 1, 1
    while 1.0 - 2 * tail / 2**count >= CONFIDENCE:
        rank += 1
        term = term * (count - rank + 1) // rank
        tail += term
    return rank
