"""Counters of a point out of those of its requests: what must be equal, and what adds up.

A count per step (collectives, launches) is a property of the setting: requests of one shape that
ran alone must all say the same. What drafts came to and how often experts overflowed depends on
the prompt, so these counts are summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["differing_counter", "pooled_counters"]

_LENGTH = "mean_acceptance_length"
_SUMMED = (
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_preemptions",
    "moe_overflows",
    "moe_dense_reruns",
    "compile_events",
)
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


def _names(requests: Sequence[Mapping[str, float]]) -> list[str]:
    """Every name there is, in the order of first mention; the acceptance length follows."""
    names = dict.fromkeys(name for counters in requests for name in counters)
    return [name for name in names if name != _LENGTH]


def _adds_up(name: str) -> bool:
    return name in _SUMMED or name.startswith(_ACCEPTED_AT)


def _shown(value: float | None) -> str:
    return "absent" if value is None else f"{value:g}"
