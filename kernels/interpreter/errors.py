"""The one exception of the interpreter, and where in the kernel it happened."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NoReturn

from kernels.interpreter.current import current_instruction

__all__ = ["NkiValidationError", "kernel_location", "refuse"]

_PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep


class NkiValidationError(AssertionError):
    """The hardware or the compiler would refuse this kernel.

    The official stub names this class and the documents show `AssertionError`; one class
    satisfies both.

    Attributes:
        instruction: the instruction or language construct at fault, "nisa.tensor_tensor".
        operand: which of its operands, "" where the whole instruction is meant.
        value: what was found.
        limit: what is allowed.
        location: "file:line" of the kernel's source.
        remedy: what the author can do, "" where there is nothing general to say.
    """

    def __init__(
        self,
        instruction: str,
        operand: str,
        value: object,
        limit: str,
        remedy: str = "",
        location: str = "",
    ) -> None:
        self.instruction = instruction
        self.operand = operand
        self.value = value
        self.limit = limit
        self.location = location or kernel_location()
        self.remedy = remedy
        where = f"{self.location}: {instruction}"
        subject = f"{operand} is {value}" if operand else f"{value}"
        tail = f"; {remedy}" if remedy else ""
        super().__init__(f"{where}: {subject}: {limit}{tail}")


def kernel_location() -> str:
    """ "file:line" of the innermost frame outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE_DIRECTORY):
        frame = frame.f_back
    return "<unknown>" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _running_construct() -> str:
    """The instruction being executed, or the name of what the kernel called."""
    frame: FrameType | None = sys._getframe(1)
    name = "kernel"
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE_DIRECTORY):
        if frame.f_code.co_name == "execute":
            return current_instruction()
        name = frame.f_code.co_qualname
        if os.sep + "language" + os.sep in frame.f_code.co_filename:
            name = f"nl.{name}"
        frame = frame.f_back
    return name


def refuse(
    operand: str, value: object, limit: str, remedy: str = "", instruction: str = ""
) -> NoReturn:
    """Raise for the running instruction, or for the view or helper the kernel called.

    Raises:
        NkiValidationError: always.
    """
    raise NkiValidationError(instruction or _running_construct(), operand, value, limit, remedy)
