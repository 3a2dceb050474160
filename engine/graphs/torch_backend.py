"""The torch.compile backend "fp8_as_uint8", registered when this module is imported (port.md R7).

Dynamo and AOTAutograd capture a function as an ATen graph; `uint8_backend` lowers it. The engine
captures its regions itself and does not need this module, whose imports take a second and leave
a cache directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend

from engine.graphs.uint8_backend import BACKEND, bytes_of, lowered

__all__ = ["GraphCompiler", "backend_over"]

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""Turns an ATen graph without float8 and its example inputs into something to call."""


def backend_over(inner: GraphCompiler) -> Callable[..., Any]:
    """A torch.compile backend that hands `inner` graphs without float8."""

    def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        left = lowered(graph, inputs)
        return left.around(inner(left.graph, [bytes_of(value) for value in inputs]))

    backend: Callable[..., Any] = aot_autograd(fw_compiler=compile_graph)
    return backend


def _as_is(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:  # noqa: ARG001
    return graph


register_backend(name=BACKEND, compiler_fn=backend_over(_as_is))
