"""ATen graphs in which e4m3fn travels as bytes (port.md R7).

A captured graph is run once more on bytes while a new graph is traced: casts to and from float8
become the arithmetic of `e4m3_bytes`, operations that only move values keep working on bytes,
anything else on float8 is refused by name. Inputs and outputs of dtype float8 are viewed as bytes
outside the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from engine.graphs.e4m3_bytes import decode_e4m3_bytes, encode_e4m3_bytes
from harness.core.errors import UsageError

__all__ = [
    "BACKEND",
    "LoweredGraph",
    "bytes_of",
    "float8_nodes",
    "lowered",
    "on_bytes",
]

BACKEND = "fp8_as_uint8"

_E4M3 = torch.float8_e4m3fn
_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in dir(torch)
    if name.startswith("float8_") and isinstance(getattr(torch, name), torch.dtype)
)
_aten = torch.ops.aten
# What only moves values does the same to bytes.
_MOVES = frozenset(
    (
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.reshape.default,
        _aten.alias.default,
        _aten.detach.default,
        _aten.clone.default,
        _aten.slice.Tensor,
        _aten.select.int,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.transpose.int,
        _aten.t.default,
        _aten.permute.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.expand.default,
        _aten.cat.default,
        _aten.stack.default,
        _aten.index.Tensor,
        _aten.index_select.default,
        _aten.gather.default,
        _aten.as_strided.default,
    )
)
_CASTS = frozenset((_aten._to_copy.default, torch.ops.prims.convert_element_type.default))


def _float8_of(value: Any) -> frozenset[torch.dtype]:
    """float8 dtypes among a value's tensors."""
    entries = value if isinstance(value, (tuple, list)) else (value,)
    return frozenset(
        entry.dtype
        for entry in entries
        if isinstance(entry, torch.Tensor) and entry.dtype in _FLOAT8
    )


def float8_nodes(graph: fx.GraphModule) -> list[str]:
    """Names of nodes that hold a float8 tensor or name a float8 dtype; empty after `on_bytes`."""
    return [
        node.name
        for node in graph.graph.nodes
        if _float8_of(node.meta.get("val"))
        or any(argument in _FLOAT8 for argument in _dtypes_named(node))
    ]


def _dtypes_named(node: fx.Node) -> list[torch.dtype]:
    arguments = [*node.args, *node.kwargs.values()]
    return [argument for argument in arguments if isinstance(argument, torch.dtype)]


class _OnBytes(fx.Interpreter):
    """Runs an ATen graph with bytes wherever it has e4m3fn."""

    def run_node(self, n: fx.Node) -> Any:
        """The node's value, or bytes in its place."""
        found = _float8_of(n.meta.get("val"))
        for source in n.all_input_nodes:
            found |= _float8_of(source.meta.get("val"))
        if not found or n.op in ("placeholder", "output"):
            return super().run_node(n)
        if found != {_E4M3}:
            names = ", ".join(sorted(str(dtype) for dtype in found))
            raise UsageError(f"graph node {n.name} has {names}: only torch.float8_e4m3fn is known")
        arguments, named = self.fetch_args_kwargs_from_env(n)
        return self._converted(n, arguments, named)

    def _converted(self, node: fx.Node, arguments: Any, named: Any) -> Any:
        to_float8 = bool(_float8_of(node.meta.get("val")))
        from_float8 = bool(_float8_of(node.all_input_nodes[0].meta.get("val")))
        source = arguments[0]
        if node.target in _CASTS:
            if to_float8:
                return source.clone() if from_float8 else encode_e4m3_bytes(source)
            return decode_e4m3_bytes(source, node.meta["val"].dtype)
        if node.target is _aten.view.dtype:
            same_bytes = to_float8 and from_float8
            other = torch.uint8 if to_float8 else arguments[1]
            return source if same_bytes or source.dtype == other else source.view(other)
        if node.target in _MOVES or node.target.__name__ == "getitem":  # type: ignore[union-attr]
            return node.target(*arguments, **named)  # type: ignore[operator]
        raise UsageError(
            f"graph node {node.name} ({node.target}) computes on float8: cast it before and after"
        )


def bytes_of(value: Any) -> Any:
    is_float8 = isinstance(value, torch.Tensor) and value.dtype == _E4M3
    return value.view(torch.uint8) if is_float8 else value


def on_bytes(graph: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The same graph without float8; it takes and gives bytes.

    Raises:
        UsageError: it computes on float8, or has one that is not e4m3fn.
    """
    byte_inputs = [bytes_of(value) for value in inputs]
    traced: fx.GraphModule = make_fx(_OnBytes(graph).run)(*byte_inputs)
    left = float8_nodes(traced)
    if left:
        raise UsageError(f"float8 is left in the graph: {', '.join(left)}")
    return traced


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A graph without float8, and which outputs of the original were float8."""

    graph: fx.GraphModule
    dtypes: tuple[torch.dtype | None, ...]

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What takes and gives float8 where the original did; `run` runs the graph."""

        def call(*arguments: Any) -> tuple[Any, ...]:
            results = run(*(bytes_of(argument) for argument in arguments))
            return tuple(
                result.view(_E4M3) if dtype == _E4M3 else result
                for result, dtype in zip(results, self.dtypes, strict=True)
            )

        return call


def lowered(graph: fx.GraphModule, inputs: Sequence[Any]) -> LoweredGraph:
    """An ATen graph on bytes.

    Raises:
        UsageError: see `on_bytes`.
    """
    (output,) = graph.graph.find_nodes(op="output")
    dtypes = tuple(_output_dtype(value) for value in output.args[0])
    return LoweredGraph(on_bytes(graph, inputs), dtypes)


def _output_dtype(value: Any) -> torch.dtype | None:
    tensor = value.meta.get("val") if isinstance(value, fx.Node) else None
    return tensor.dtype if isinstance(tensor, torch.Tensor) else None
