"""How a launch runs: poison, switches, trace. Set around a launch with `launch_options`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.interpreter.summary import LaunchSummary

__all__ = [
    "LaunchOptions",
    "current_options",
    "is_precise",
    "launch_options",
    "platform_target",
    "set_launch_defaults",
]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Options of one launch.

    Attributes:
        poison: what fresh HBM holds where a float is expected; run twice with different poisons
            to see whether a result depends on it.
        integer_poison: the same for integers.
        trace: keep every instruction for the trace of the summary.
        races: refuse conflicting accesses of the two LNC2 programs to shared HBM.
        replay: later calls of a kernel with arguments of the same kind replay its instructions.
        precise: store narrow floats as they are (True), or keep everything in fp32 (False) to
            separate an algorithm's error from rounding; None: by NKI_PRECISE_FP, default 1.
        on_launch: called with the summary of each finished launch.
    """

    poison: float = math.nan
    integer_poison: int = 4
    trace: bool = False
    races: bool = True
    replay: bool = True
    precise: bool | None = None
    on_launch: Callable[[LaunchSummary], None] | None = None


class _Defaults:
    options = LaunchOptions()


_OPTIONS: ContextVar[LaunchOptions | None] = ContextVar("launch_options", default=None)


def current_options() -> LaunchOptions:
    """The options that a launch started now would have."""
    return _OPTIONS.get() or _Defaults.options


def set_launch_defaults(**changes: Any) -> None:
    """Change the options of every later launch of the process, in whatever thread."""
    _Defaults.options = replace(_Defaults.options, **changes)


@contextmanager
def launch_options(**changes: Any) -> Iterator[LaunchOptions]:
    """Launches inside the block run with these options changed."""
    options = replace(current_options(), **changes)
    token = _OPTIONS.set(options)
    try:
        yield options
    finally:
        _OPTIONS.reset(token)


def is_precise(options: LaunchOptions) -> bool:
    """Whether narrow floats are rounded when they are stored."""
    if options.precise is not None:
        return options.precise
    return os.environ.get("NKI_PRECISE_FP", "1") != "0"


def platform_target() -> str:
    """NEURON_PLATFORM_TARGET_OVERRIDE, trn2 where it is not set."""
    return os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2") or "trn2"
