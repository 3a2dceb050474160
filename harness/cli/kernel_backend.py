"""The face of `kernels.launch` that a judge's worker uses, by target text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

__all__ = ["COUNTERS", "POISON", "SELECT", "launch_counters", "poisoned", "select_backend"]

SELECT = f"{__name__}:select_backend"
POISON = f"{__name__}:poisoned"
COUNTERS = f"{__name__}:launch_counters"

_BACKEND_VARIABLE = "NEURON_HARNESS_BACKEND"
_asked = ""


def select_backend(name: str) -> None:
    """Make `name` this process's backend. Which NKI modules serve is settled by the first import
    of `kernels.launch`, so this comes first, in a process of its own.

    Raises:
        UsageError: no backend of that name.
        MissingEvidenceError: it cannot run here; the message says what is missing.
    """
    global _asked
    os.environ[_BACKEND_VARIABLE] = _asked = name
    from kernels.launch import backend_selected, reset_counters

    with backend_selected(name) as chosen:
        reset_counters()
        if chosen == "device":
            from kernels.device import forget_fallbacks

            forget_fallbacks()


def poisoned(value: float) -> AbstractContextManager[bool]:
    """Fresh HBM of launches inside the block holds `value`."""
    from kernels.launch import poisoned as poisoned_launches

    return poisoned_launches(value)


def launch_counters() -> Mapping[str, float]:
    """What launches did since this was last asked; then counting starts afresh."""
    from kernels.launch import counters, reset_counters

    counted = counters()
    reset_counters()
    elsewhere = sum(n for backend, n in counted.backends.items() if backend != _asked)
    left = _left_device() if _asked == "device" else {}
    named = {f"fallback {op}": float(calls) for op, calls in left.items()}
    return {**counted.as_mapping(), "num_fallbacks": elsewhere + sum(left.values()), **named}


def _left_device() -> Mapping[str, int]:
    """Ops that torch-neuronx ran on the CPU since the last look."""
    from kernels.device import fallbacks, forget_fallbacks

    found = fallbacks()
    forget_fallbacks()
    return found
