"""The face of `kernels.launch` that a judge's worker uses, by target text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

from harness.core.errors import UsageError

__all__ = [
    "CORES",
    "COUNTERS",
    "POISON",
    "SELECT",
    "launch_counters",
    "on_cores",
    "poisoned",
    "select_backend",
    "select_on_one_core",
    "select_on_two_cores",
    "selector",
]

SELECT = f"{__name__}:select_backend"
POISON = f"{__name__}:poisoned"
COUNTERS = f"{__name__}:launch_counters"
CORES = f"{__name__}:on_cores"

_BACKEND_VARIABLE = "NEURON_HARNESS_BACKEND"
_LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
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


def select_on_one_core(name: str) -> None:
    """`select_backend` with one physical core a launch (LNC=1)."""
    os.environ[_LNC_VARIABLE] = "1"
    select_backend(name)


def select_on_two_cores(name: str) -> None:
    """`select_backend` with two physical cores a launch (LNC=2)."""
    os.environ[_LNC_VARIABLE] = "2"
    select_backend(name)


def selector(lnc: int) -> str:
    """Target text of what selects a backend at this LNC degree; 0 leaves the backend's own.

    Raises:
        UsageError: no such degree.
    """
    chosen = {0: SELECT, 1: f"{__name__}:select_on_one_core", 2: f"{__name__}:select_on_two_cores"}
    if lnc not in chosen:
        raise UsageError(f"--lnc {lnc}: choose 1 or 2, or 0 for the backend's own")
    return chosen[lnc]


def poisoned(value: float) -> AbstractContextManager[bool]:
    """Fresh HBM of launches inside the block holds `value`."""
    from kernels.launch import poisoned as poisoned_launches

    return poisoned_launches(value)


def on_cores(degree: int) -> AbstractContextManager[None]:
    """Launches inside the block use this many physical cores."""
    from kernels.launch import lnc_selected

    return lnc_selected(degree)


def launch_counters() -> Mapping[str, float]:
    """What launches did since this was last asked; then counting starts afresh."""
    from kernels.launch import active_lnc, counters, reset_counters

    counted = counters()
    reset_counters()
    elsewhere = sum(n for backend, n in counted.backends.items() if backend != _asked)
    left = _left_device() if _asked == "device" else {}
    named = {f"fallback {op}": float(calls) for op, calls in left.items()}
    whole = {"num_fallbacks": elsewhere + sum(left.values()), "lnc": active_lnc()}
    return {**counted.as_mapping(), **whole, **named}


def _left_device() -> Mapping[str, int]:
    """Ops that torch-neuronx ran on the CPU since the last look."""
    from kernels.device import fallbacks, forget_fallbacks

    found = fallbacks()
    forget_fallbacks()
    return found
