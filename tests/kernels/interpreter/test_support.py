"""The table of what is executed agrees with what happens when it is called."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import kernels.interpreter.collectives as collectives
import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.errors import NkiValidationError
from kernels.interpreter.support import public_signatures, support_table
from tests.kernels.interpreter.test_signatures import _parameters

_MODULES: dict[str, Any] = {
    "nki": nki,
    "nki.isa": nisa,
    "nki.language": nl,
    "nki.collectives": collectives,
}
_ROWS = support_table()


def test_every_documented_function_has_one_row() -> None:
    documented = [
        (module, name)
        for module, sheet in public_signatures().items()
        for name in sheet["functions"]
    ]
    assert [(row.module, row.name) for row in _ROWS] == documented
    assert all(bool(row.reason) == (row.state != "supported") for row in _ROWS)
    assert not [row for row in _ROWS if row.reason == "absent"]


@pytest.mark.parametrize(
    ("module", "name"),
    [(row.module, row.name) for row in _ROWS if row.state == "not"],
    ids=lambda value: value.rpartition(".")[2],
)
def test_what_is_not_executed_is_refused_when_called(module: str, name: str) -> None:
    function = getattr(_MODULES[module], name)

    @nki.jit
    def kernel() -> None:
        tile = nl.full((4, 8), 1.0, nl.float32)
        required = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is inspect.Parameter.empty
        ]
        function(*(tile for _ in required))

    with pytest.raises(NkiValidationError):
        kernel()


@pytest.mark.parametrize("name", sorted(public_signatures()["nki.collectives"]["functions"]))
def test_collectives_have_their_signatures(name: str) -> None:
    documented = public_signatures()["nki.collectives"]["functions"][name]
    assert _parameters(getattr(collectives, name)) == documented
