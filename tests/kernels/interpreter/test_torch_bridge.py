"""A kernel as a torch operator: eager, compiled as one graph, checked by torch itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
import kernels.interpreter.nki as nki
from kernels.interpreter.torch_bridge import torch_operator


@nki.jit
def scale_kernel(x: Any, factor: float) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    nl.store(out, tile)
    return out


@nki.jit
def _add_one(x: Any) -> Any:
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nl.store(x, tile)
    return x


def _add_one_in_place(x: torch.Tensor) -> None:
    _add_one(x)


scale = torch_operator(
    "nki_bridge_test::scale",
    "(Tensor x, float factor) -> Tensor",
    scale_kernel,
    lambda x, factor: torch.empty_like(x),
)
add_one = torch_operator(
    "nki_bridge_test::add_one",
    "(Tensor(a!) x) -> ()",
    _add_one_in_place,
    lambda x: None,
    mutates=("x",),
)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(12, dtype=torch.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_eager(x: torch.Tensor) -> None:
    assert torch.equal(scale(x, 3.0), 3 * x)
    assert torch.equal(scale(x.t(), 3.0), 3 * x.t())


def test_inside_torch_compile_as_one_graph(x: torch.Tensor) -> None:
    compiled = torch.compile(lambda t: scale(t + 1, 2.0) * 0.5, backend="aot_eager", fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(x), x + 1)


def test_mutated_input_in_eager_and_compiled(x: torch.Tensor) -> None:
    add_one(x)
    assert x[0, 0] == 1

    def body(t: torch.Tensor) -> torch.Tensor:
        add_one(t)
        return t * 2

    before = x.clone()
    got = torch.compile(body, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(x, before + 1)
    assert torch.equal(got, 2 * (before + 1))


def test_torch_finds_schema_and_shape_function_consistent(x: torch.Tensor) -> None:
    torch.library.opcheck(scale, (x, 2.0), test_utils=("test_schema", "test_faketensor"))
