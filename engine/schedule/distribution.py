"""What a sampled token is drawn from: the likeliest tokens and their probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.core.errors import UsageError

__all__ = ["Candidates", "Distribution", "SamplingRule"]

Ids = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """How one request's tokens are picked.

    Attributes:
        temperature: 0 is greedy, lowest id on ties.
        top_k: the likeliest so many are kept; 0 keeps all.
        top_p: of these, the fewest whose mass reaches it are kept.
        seed: of the request; a token's draw depends on it and the token's place alone.
        min_tokens: the end token is not picked before so many are out.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature={self.temperature}: it is finite and at least 0")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p={self.top_p}: it lies within 0..1, 0 excluded")
        if self.top_k < 0 or self.min_tokens < 0:
            raise UsageError(
                f"top_k={self.top_k} min_tokens={self.min_tokens}: both are at least 0"
            )
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed={self.seed}: it lies within 0..2^64-1")

    @property
    def is_greedy(self) -> bool:
        """The plain argmax, which every rank makes for itself."""
        return self.temperature == 0 and self.min_tokens == 0


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens of one row of logits: ids [K] and logits [K], best first, lowest id on ties."""

    ids: Ids
    logits: Numbers

    @classmethod
    def of_row(cls, row: npt.NDArray[np.floating]) -> Candidates:
        """All of a row [V]."""
        logits = row.astype(np.float64)
        # Stable: of equal logits the lower id comes first.
        order = np.argsort(-logits, kind="stable")
        return cls(order, logits[order])

    def without(self, token: int) -> Candidates:
        """The same without one token."""
        kept = self.ids != token
        return Candidates(self.ids[kept], self.logits[kept])


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities [K] of tokens ids [K]; all others have none. They sum to 1."""

    ids: Ids
    probabilities: Numbers

    @classmethod
    def of(cls, candidates: Candidates, rule: SamplingRule) -> Distribution:
        """Softmax at the rule's temperature over what its top-k and top-p keep."""
        if rule.temperature == 0:
            return cls(candidates.ids[:1], np.ones(1))
        kept = slice(rule.top_k or None)
        ids, logits = candidates.ids[kept], candidates.logits[kept]
        # Next to absolute zero a gap may overflow to -inf, which is what it means.
        with np.errstate(over="ignore"):
            weights = np.exp((logits - logits[0]) / rule.temperature)
        # The smallest set whose mass reaches top_p, never empty.
        mass = np.cumsum(weights / weights.sum())
        count = int(np.searchsorted(mass, rule.top_p, side="left")) + 1
        return cls(ids[:count], weights[:count] / weights[:count].sum())

    def draw(self, point: float) -> int:
        """The token at a point of [0, 1)."""
        mass = np.cumsum(self.probabilities)
        place = int(np.searchsorted(mass, point * mass[-1], side="right"))
        return int(self.ids[min(place, len(self.ids) - 1)])

    def at(self, ids: Ids) -> Numbers:
        """Probabilities of any tokens [N]."""
        order = np.argsort(self.ids)
        ascending = self.ids[order]
        place = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
        found: Numbers = np.where(ascending[place] == ids, self.probabilities[order][place], 0.0)
        return found

    def beyond(self, other: Distribution) -> Distribution:
        """What this has more of than `other`, normalised: a rejected draft's replacement.

        Where it has nothing more the two are equal up to rounding, and either will do.
        """
        excess = np.maximum(self.probabilities - other.at(self.ids), 0.0)
        total = excess.sum()
        return Distribution(self.ids, excess / total) if total > 0 else self
