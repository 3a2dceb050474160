"""Whether an op ran on the CPU although the device was asked for, and may that be.

Eager torch-neuronx runs what it lacks on the CPU without a word: the result is right, the time is
not the device's. Engines count such calls per step (`EngineFace`, `Generation.counters`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

__all__ = [
    "ALLOWED_VARIABLE",
    "FALLBACK",
    "allowed_by_environment",
    "fallback_failure",
    "fallbacks_of",
]

ALLOWED_VARIABLE = "NEURON_HARNESS_ALLOW_FALLBACKS"
"""Names ops for judges whose workers are processes of their own: "aten::sort,aten::topk"."""

FALLBACK = "fallback "
"""Prefix of a counter; the op's name follows."""


def fallbacks_of(counters: Mapping[str, float]) -> dict[str, int]:
    """op -> calls per step that left the device."""
    return {
        name.removeprefix(FALLBACK): int(count)
        for name, count in counters.items()
        if name.startswith(FALLBACK)
    }


def allowed_by_environment() -> tuple[str, ...]:
    """What NEURON_HARNESS_ALLOW_FALLBACKS names."""
    return tuple(name for name in os.environ.get(ALLOWED_VARIABLE, "").split(",") if name)


def fallback_failure(counters: Mapping[str, float], allowed: Iterable[str]) -> str:
    """One line naming the ops that were not allowed to leave the device; "" where none did."""
    permitted = set(allowed)
    found = {op: n for op, n in fallbacks_of(counters).items() if op not in permitted}
    if not found:
        return ""
    named = ", ".join(f"{op} ({count} a step)" for op, count in sorted(found.items()))
    options = " ".join(f"--allow-fallback {op}" for op in sorted(found))
    return (
        f"ran on the CPU instead of the device: {named}; where that may be, {options} "
        f"(parity: {ALLOWED_VARIABLE}={','.join(sorted(found))})"
    )
