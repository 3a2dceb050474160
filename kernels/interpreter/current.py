"""Which program runs in this thread, and which instruction it executes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.interpreter.program import Program

__all__ = ["LOCAL", "current_instruction", "running_program"]


class _Local(threading.local):
    program: Program | None = None
    instruction: str = "kernel"


LOCAL = _Local()


def running_program() -> Program | None:
    """The program of this thread, None outside a kernel."""
    return LOCAL.program


def current_instruction() -> str:
    """Name of the instruction being executed, for messages."""
    return LOCAL.instruction
