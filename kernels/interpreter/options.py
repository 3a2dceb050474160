"""How a launch runs: poison, switches, trace. Set around a launch with `launch_options`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["LaunchOptions", "current_options", "launch_options", "platform_target"]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Options of one launch.

    Attributes:
        poison: what fresh HBM holds where a float is expected; run twice with different poisons
            to see whether a result depends on it.
        integer_poison: the same for integers.
        trace: keep every instruction for the trace of the summary.
        races: refuse conflicting accesses of the two LNC2 programs to shared HBM.
    """

    poison: float = math.nan
    integer_poison: int = 4
    trace: bool = False
    races: bool = True


_DEFAULTS = LaunchOptions()
_OPTIONS: ContextVar[LaunchOptions] = ContextVar("launch_options", default=_DEFAULTS)


def current_options() -> LaunchOptions:
    """The options that a launch started now would have."""
    return _OPTIONS.get()


@contextmanager
def launch_options(**changes: Any) -> Iterator[LaunchOptions]:
    """Launches inside the block run with these options changed."""
    options = replace(_OPTIONS.get(), **changes)
    token = _OPTIONS.set(options)
    try:
        yield options
    finally:
        _OPTIONS.reset(token)


def platform_target() -> str:
    """NEURON_PLATFORM_TARGET_OVERRIDE, trn2 where it is not set."""
    return os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2") or "trn2"
