"""Ranges and run-time loops."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kernels.interpreter.errors import refuse
from kernels.interpreter.program import current_program
from kernels.interpreter.registers import VirtualRegister

__all__ = [
    "affine_range",
    "dynamic_range",
    "fori_loop",
    "sequential_range",
    "static_range",
    "while_loop",
]


def _range(start: int, stop: int | None, step: int) -> range:
    return range(start) if stop is None else range(start, stop, step)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """A deprecated alias of range."""
    return _range(start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """A deprecated alias of range."""
    return _range(start, stop, step)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """A deprecated alias of range."""
    return _range(start, stop, step)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Any:
    """Gone since NKI 0.7."""
    refuse(
        "",
        "called",
        "removed in NKI 0.7",
        "use nl.fori_loop(lower, upper, body)",
        instruction="nl.dynamic_range",
    )


def _bound(value: Any) -> int:
    return value.load() if isinstance(value, VirtualRegister) else int(value)


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1
) -> None:
    """body_fun(register) for lower, lower + step, … below upper, which may be registers."""
    program = current_program("nl.fori_loop")
    program.forbid_replay()
    for value in range(_bound(lower), _bound(upper), step):
        body_fun(VirtualRegister(value))


def while_loop(init: VirtualRegister, body_fun: Callable[..., Any]) -> None:
    """body_fun until the register is 0. A register that the body returns takes its place."""
    program = current_program("nl.while_loop")
    program.forbid_replay()
    if not isinstance(init, VirtualRegister):
        refuse("init", repr(init), "a register", instruction="nl.while_loop")
    takes_register = bool(inspect.signature(body_fun).parameters)
    register = init
    while register.load() != 0:
        result = body_fun(register) if takes_register else body_fun()
        if isinstance(result, VirtualRegister):
            register = result
