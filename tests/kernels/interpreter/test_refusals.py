"""Every wrong kernel is refused with the message that helps its author."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError
from tests.kernels.interpreter.wrong_kernels import WRONG

_LIMIT_COUNT = 60


@pytest.mark.parametrize(("body", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_kernel_is_refused(body: Callable[[], Any], expected: str) -> None:
    with pytest.raises(NkiValidationError, match=expected) as refusal:
        nki.jit(body)()
    assert re.search(r"^\S+\.py:\d+: ", str(refusal.value))


def test_there_are_at_least_sixty_of_them() -> None:
    assert len(WRONG) >= _LIMIT_COUNT


def test_a_refusal_names_instruction_operand_value_limit_line_and_remedy() -> None:
    @nki.jit
    def kernel() -> None:
        data = nl.zeros((128, 4), nl.float32)
        nisa.reciprocal(dst=data[5:15], data=data[0:10])

    with pytest.raises(NkiValidationError) as refusal:
        kernel()
    error = refusal.value
    assert error.instruction == "nisa.reciprocal"
    assert error.operand == "dst"
    assert error.value == "10 partitions from partition 5"
    assert error.limit == "10 partitions start at 0 or 32 or 64 or 96"
    assert "multiple of 32" in error.remedy
    line = kernel.function.__code__.co_firstlineno + 3
    assert error.location == f"{__file__}:{line}"


def test_it_is_an_assertion_error_as_the_documents_show() -> None:
    assert issubclass(NkiValidationError, AssertionError)
    assert nisa.NkiValidationError is NkiValidationError


def test_after_a_refusal_the_next_launch_works() -> None:
    with pytest.raises(NkiValidationError):
        nki.jit(WRONG["read_of_a_fresh_tile"][0])()

    @nki.jit
    def kernel() -> Any:
        return nl.full((4, 4), 2.0, nl.float32, nl.shared_hbm)

    assert (kernel() == 2).all()


def test_an_instruction_outside_a_kernel_is_refused() -> None:
    with pytest.raises(NkiValidationError, match="called outside a kernel"):
        nl.ndarray((4, 4), nl.float32)
    with pytest.raises(NkiValidationError, match="called outside a kernel"):
        nisa.memset(dst=None, value=0)  # type: ignore[arg-type]


def test_an_error_of_the_kernel_itself_passes_through() -> None:
    @nki.jit
    def kernel() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        kernel()
