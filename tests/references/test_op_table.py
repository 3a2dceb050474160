"""The table against the signature sheet."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import references
from harness.core.op_table import resolve_op_table
from harness.core.ops import OP_SHEET, OpSpec
from references.op_table import TABLE


def test_the_table_has_every_op_of_the_sheet_and_forces_no_grid() -> None:
    table = resolve_op_table(["references.op_table:TABLE"])
    assert set(table.ops) == set(OP_SHEET)
    assert table.fp8_max is None
    assert set(table.source.values()) == {"references.op_table:TABLE"}


@pytest.mark.parametrize("spec", OP_SHEET.values(), ids=lambda spec: spec.name)
def test_an_op_has_the_sheets_parameters_and_lives_in_the_file_of_its_stem(spec: OpSpec) -> None:
    op = TABLE.ops[spec.name]
    parameters = inspect.signature(op).parameters
    assert tuple(parameters) == (*spec.parameter_names, "numerics")
    assert parameters["numerics"].kind is inspect.Parameter.KEYWORD_ONLY
    assert op.__module__ == f"references.{spec.stem}"


def test_every_public_name_exists() -> None:
    folder = Path(references.__file__).parent
    for path in folder.rglob("*.py"):
        if path.name == "__init__.py" and path.parent == folder:
            continue
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(("references", *(part for part in parts if part != "__init__")))
        module = importlib.import_module(name)
        missing = [public for public in module.__all__ if not hasattr(module, public)]
        assert not missing, f"{name} lists {missing}"
