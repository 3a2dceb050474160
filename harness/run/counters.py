"""Counters of a point out of those of its requests: what must be equal, and what adds up.

A count per step (collectives, launches) is a property of the setting: requests of one shape that
ran alone must all say the same. What drafts came to and how often experts overflowed depends on
the prompt, so these counts are summed: drafts over requests, overflows over steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["TOTALS", "differing_counter", "pooled_counters", "summed_totals"]

# Counts of a whole stretch of steps; of a step that requests share each would count them again.
TOTALS = ("compile_events", "moe_overflows", "moe_dense_reruns")
_LENGTH = "mean_acceptance_length"
_SUMMED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_preemptions")
_ACCEPTED_AT = "accepted_at_"


def differing_counter(requests: Sequence[Mapping[str, float]]) -> str | None:
    """A count per step in which requests differ, with two of its values; None if none does."""
    for name in _names(requests):
        values = [counters.get(name) for counters in requests]
        if not _adds_up(name) and any(value != values[0] for value in values):
            other = next(value for value in values if value != values[0])
            return f"{name} is {_shown(values[0])} and {_shown(other)}"
    return None


def pooled_counters(requests: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One value a counter; a count per step that differs between requests is left out.

    Requests served together share steps, whose counts follow who else was in them.
    """
    pooled: dict[str, float] = {}
    for name in _names(requests):
        values = [counters[name] for counters in requests if name in counters]
        if _adds_up(name):
            pooled[name] = sum(values)
        elif len(values) == len(requests) and len(set(values)) == 1:
            pooled[name] = values[0]
    if drafts := pooled.get("num_drafts"):
        pooled[_LENGTH] = 1 + pooled["num_accepted_tokens"] / drafts
    return pooled


def summed_totals(stretches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums of what every stretch tells; what one of them does not tell is not known."""
    return {
        name: sum(totals[name] for totals in stretches)
        for name in TOTALS
        if stretches and all(name in totals for totals in stretches)
    }


def _names(requests: Sequence[Mapping[str, float]]) -> list[str]:
    """Every name a request can tell, in the order of first mention; the length follows."""
    names = dict.fromkeys(name for counters in requests for name in counters)
    return [name for name in names if name not in (_LENGTH, *TOTALS)]


def _adds_up(name: str) -> bool:
    return name in _SUMMED or name.startswith(_ACCEPTED_AT)


def _shown(value: float | None) -> str:
    return "absent" if value is None else f"{value:g}"
