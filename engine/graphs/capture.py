"""From a function of tensors to an ATen graph that takes every tensor as an argument.

The graph holds no tensor of its own that a layer owns: weights, caches and indices come in, so
that one graph serves all layers of a kind. Arguments that the function does not read are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["CapturedGraph", "capture"]

Flat = Callable[..., Sequence["torch.Tensor | None"]]


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """An ATen graph and how it is called.

    Attributes:
        graph: takes the used tensors, gives the present results.
        used: places of the used tensors among all that were given.
        present: of each result of the function, whether it is a tensor (else None).
    """

    graph: fx.GraphModule
    used: tuple[int, ...]
    present: tuple[bool, ...]


def capture(task: Flat, tensors: Sequence[torch.Tensor]) -> CapturedGraph:
    """The graph of task(*tensors), whose results are tensors or None.

    Tensors stand in by shape alone while it is captured: nothing is computed, no cache written.
    """
    present: list[bool] = []

    def present_results(*values: torch.Tensor) -> list[torch.Tensor]:
        results = task(*values)
        present[:] = [result is not None for result in results]
        return [result for result in results if result is not None]

    # What the function makes itself is a stand-in too.
    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.inference_mode(False), torch.no_grad(), shapes:
        stand_ins = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            for one in tensors
        ]
        graph: fx.GraphModule = make_fx(present_results)(*stand_ins)
    return CapturedGraph(graph, _without_unused_inputs(graph), tuple(present))


def _without_unused_inputs(graph: fx.GraphModule) -> tuple[int, ...]:
    """Drop placeholders nobody reads; the places of those that stay."""
    used = []
    for place, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        if node.users:
            used.append(place)
        else:
            graph.graph.erase_node(node)
    graph.recompile()
    return tuple(used)
