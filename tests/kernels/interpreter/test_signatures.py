"""The public face equals the documented one: names, parameter order, defaults."""

from __future__ import annotations

import inspect
import json
from enum import Enum
from importlib import resources
from typing import Any

import pytest

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.dtypes import DType

_SHEET = json.loads(
    (resources.files("kernels.interpreter") / "nki_signatures.json").read_text(encoding="utf-8")
)["modules"]
_MODULES = {"nki": nki, "nki.isa": nisa, "nki.language": nl}


def _rendered(default: Any) -> str:
    if isinstance(default, Enum):
        prefix = "" if type(default).__name__ == "MemoryRegion" else f"{type(default).__name__}."
        return f"{prefix}{default.name}"
    if isinstance(default, DType):
        return default.name
    if callable(default):
        return str(default.__name__)
    return repr(default)


def _parameters(function: Any) -> list[str]:
    rows = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue  # jit takes further options
        text = parameter.name
        if parameter.default is not inspect.Parameter.empty:
            text += f"={_rendered(parameter.default)}"
        rows.append(text)
    return rows


_FUNCTIONS = [
    pytest.param(module, name, parameters, id=f"{module}.{name}")
    for module, sheet in _SHEET.items()
    if module in _MODULES
    for name, parameters in sheet["functions"].items()
]


@pytest.mark.parametrize(("module", "name", "documented"), _FUNCTIONS)
def test_signature_equals_the_documented_one(module: str, name: str, documented: list[str]) -> None:
    ours = _parameters(getattr(_MODULES[module], name))
    # "..." stands for a default the documentation does not spell out.
    wildcards = [i for i, text in enumerate(documented) if text.endswith("=...")]
    for i in wildcards:
        ours[i] = ours[i].split("=")[0] + "=..."
    assert ours == documented


_CLASSES = [
    pytest.param(module, name, members, id=f"{module}.{name}")
    for module, sheet in _SHEET.items()
    if module in _MODULES
    for name, members in sheet["classes"].items()
]


@pytest.mark.parametrize(("module", "name", "members"), _CLASSES)
def test_class_has_the_documented_members(module: str, name: str, members: list[str]) -> None:
    found = getattr(_MODULES[module], name)
    for member in members:
        method, _, rest = member.partition("(")
        assert hasattr(found, method), f"{name}.{method}"
        arguments = [part.strip() for part in rest.rstrip(")").split(",") if part.strip()]
        if arguments:
            ours = [p for p in inspect.signature(getattr(found, method)).parameters if p != "self"]
            assert ours == arguments


@pytest.mark.parametrize("module", ["nki.isa", "nki.language"])
def test_every_documented_name_exists(module: str) -> None:
    missing = [name for name in _SHEET[module]["names"] if not hasattr(_MODULES[module], name)]
    assert missing == []


def test_all_lists_exactly_the_documented_names() -> None:
    for module in ("nki.isa", "nki.language"):
        sheet = _SHEET[module]
        documented = set(sheet["functions"]) | set(sheet["classes"]) | set(sheet["names"])
        assert set(_MODULES[module].__all__) == documented
