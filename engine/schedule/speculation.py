"""Verifying drafts greedily, cutting them by confidence, counting what was accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Acceptance", "confident_length", "num_accepted"]


def num_accepted(drafts: Sequence[int], target_ids: Sequence[int]) -> int:
    """Length of the longest prefix of drafts that the target would have chosen itself.

    Args:
        target_ids: the target's choice after the first token and after each draft.
    """
    count = 0
    while count < len(drafts) and drafts[count] == target_ids[count]:
        count += 1
    return count


def confident_length(confidence: Sequence[float], threshold: float) -> int:
    """Drafts to verify: those whose whole prefix survives with at least `threshold`.

    Args:
        confidence: raw logits; a prefix survives with the product of their sigmoids.
    """
    if threshold <= 0:
        return len(confidence)
    survival = 1.0
    for length, logit in enumerate(confidence):
        # exp of a positive number could overflow; this form cannot.
        survival *= 0.5 * (1.0 + math.tanh(0.5 * logit))
        if survival < threshold:
            return length
    return len(confidence)


@dataclass(slots=True)
class Acceptance:
    """Counts of one request: blocks verified, drafts in them, drafts accepted by place."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_by_place: list[int] = field(default_factory=list)

    def note(self, num_draft_tokens: int, accepted: int) -> None:
        """Add one verified block."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        missing = num_draft_tokens - len(self.accepted_by_place)
        self.accepted_by_place.extend([0] * missing)
        for place in range(accepted):
            self.accepted_by_place[place] += 1

    def counters(self) -> dict[str, float]:
        """As kept in a Generation: mean_accepted is the tokens a step gives, bonus included."""
        if self.num_drafts == 0:
            return {}
        accepted = sum(self.accepted_by_place)
        counters = {
            "num_drafts": float(self.num_drafts),
            "num_draft_tokens": float(self.num_draft_tokens),
            "num_accepted_tokens": float(accepted),
            "mean_acceptance_length": 1 + accepted / self.num_drafts,
        }
        for place, count in enumerate(self.accepted_by_place):
            counters[f"accepted_at_{place}"] = float(count)
        return counters
