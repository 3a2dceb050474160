"""Every op of every table has the face that the signature sheet gives it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from harness.core.op_table import OpTable
from harness.core.ops import OP_SHEET
from harness.core.registry import resolve_target

TABLES = ("references.op_table:TABLE", "kernels.op_table:TABLE")


def _faults(op: Callable[..., Any], names: tuple[str, ...]) -> str:
    """What is wrong with a callable's parameters, in words; empty if nothing."""
    parameters = list(inspect.signature(op).parameters.values())
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    others = [(p.name, p.kind) for p in parameters if p.kind is not p.POSITIONAL_OR_KEYWORD]
    if tuple(positional) != names:
        return f"parameters are {positional}, the sheet has {list(names)}"
    if others != [("numerics", inspect.Parameter.KEYWORD_ONLY)]:
        return f"beside them {others}, only the keyword numerics is allowed"
    return ""


@pytest.mark.parametrize("target", TABLES)
def test_parameters_are_those_of_the_sheet(target: str) -> None:
    table = resolve_target(target)
    assert isinstance(table, OpTable)
    faults = {
        name: fault
        for name, op in table.ops.items()
        if (fault := _faults(op, OP_SHEET[name].parameter_names))
    }
    assert faults == {}


def test_the_reference_table_is_whole() -> None:
    assert set(resolve_target(TABLES[0]).ops) == set(OP_SHEET)


def test_the_kernel_table_holds_the_ops_of_its_catalog_on_the_grid_of_the_hardware() -> None:
    from kernels.catalog import KERNELS

    table = resolve_target(TABLES[1])
    assert set(table.ops) == set(KERNELS)
    assert table.fp8_max == 240


def test_a_wrong_face_would_be_seen() -> None:
    def renamed(x: Any, gain: Any, eps: float, *, numerics: Any) -> None: ...

    def without_numerics(x: Any, weight: Any, eps: float) -> None: ...

    names = OP_SHEET["rms_norm"].parameter_names
    assert "the sheet has" in _faults(renamed, names)
    assert "only the keyword numerics" in _faults(without_numerics, names)
