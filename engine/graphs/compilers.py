"""Who turns a captured graph into something to call, by name.

inductor       torch's compiler for the CPU; needs a C++ compiler; kept on disk
aten           the graph op by op; needs nothing, gives the very bits of eager execution
fp8_as_uint8   the graph without float8 (port.md R7); on the CPU op by op, on a device through
               its own compiler
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.graphs.graph_store import GraphStore
from engine.graphs.uint8_backend import BACKEND, float8_nodes, lowered
from harness.core.errors import MissingEvidenceError, UsageError

__all__ = ["COMPILERS", "Compiled", "Compiler", "require_compiler", "resolve_compiler"]

COMPILERS = ("inductor", "aten", BACKEND)
Run = Callable[..., Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled graph, and whether it came from disk."""

    run: Run
    was_cached: bool = False


class Compiler(Protocol):
    """Compiles captured graphs."""

    def compile(self, name: str, graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Compiled:
        """What runs `graph`; `name` says which in messages."""


class Aten:
    """The graph as it is."""

    def compile(
        self,
        name: str,  # noqa: ARG002
        graph: fx.GraphModule,
        inputs: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> Compiled:
        """See Compiler."""
        return Compiled(graph)


class Inductor:
    """torch's inductor, its results kept by `store`."""

    def __init__(self, store: GraphStore) -> None:
        self._store = store

    def compile(self, name: str, graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Compiled:
        """See Compiler."""
        run, was_cached = self._store.compiled(name, lambda: _through_inductor(graph, inputs))
        return Compiled(run, was_cached)


class Uint8:
    """Graphs in which e4m3fn travels as bytes; `inner` is the device's compiler."""

    def __init__(self, inner: str) -> None:
        self._inner = inner

    def compile(
        self,
        name: str,
        graph: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
    ) -> Compiled:
        """See Compiler."""
        # Shapes alone: the region writes caches, which compiling must not touch.
        with FakeTensorMode(allow_non_fake_inputs=True):
            stand_ins = [_empty_like(one) for one in inputs]
        left = lowered(graph, stand_ins)
        if found := float8_nodes(left.graph):
            raise UsageError(f"region {name}: float8 is left in {', '.join(found)}")
        if not self._inner:
            return Compiled(left.around(left.graph))
        # The device's own compiler and its cache; fullgraph holds, since it is one already.
        run = torch.compile(left.graph, backend=self._inner, fullgraph=True, dynamic=False)
        return Compiled(left.around(run))


def _through_inductor(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Run:
    from torch._inductor import config, standalone_compile

    settings = {
        # Values are rounded where the graph says so, not where a fused kernel would.
        "emulate_precision_casts": True,
        # No pool of processes outlives an engine.
        "compile_threads": 1,
        "fx_graph_cache": True,
    }
    with torch.inference_mode(False), torch.no_grad(), config.patch(settings):
        stand_ins: list[Any] = [_empty_like(one) for one in inputs]
        return standalone_compile(graph, stand_ins, dynamic_shapes="from_example_inputs")


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def resolve_compiler(name: str, device: torch.device, store: GraphStore) -> Compiler:
    """The compiler of that name on a device; "" is the device's own.

    Raises:
        UsageError, MissingEvidenceError: see `require_compiler`.
    """
    name = require_compiler(name, device.type)
    if device.type != "cpu":
        return Uint8(device.type)
    if name == "inductor":
        return Inductor(store)
    return Aten() if name == "aten" else Uint8("")


def require_compiler(name: str, device: str) -> str:
    """The compiler's full name, once it is sure to work here.

    Raises:
        UsageError: unknown, or not for this device.
        MissingEvidenceError: inductor without a C++ compiler.
    """
    if device != "cpu":
        if name not in ("", BACKEND):
            raise UsageError(f"compile backend {name!r}: device {device} takes {BACKEND!r} alone")
        return BACKEND
    name = name or "inductor"
    if name not in COMPILERS:
        raise UsageError(f"compile backend {name!r} is not known: choose {', '.join(COMPILERS)}")
    if name == "inductor":
        _require_cpp()
    return name


def _require_cpp() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise MissingEvidenceError(
            "compile backend inductor is missing its C++ compiler: install g++ (or name one in "
            "CXX), choose --compile-backend aten, or run with --enforce-eager"
        ) from None
