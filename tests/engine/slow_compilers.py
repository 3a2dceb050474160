"""Rank processes whose rank 1 takes long to make its first graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from engine.graphs.compilers import Aten, Compiled
from engine.parallel.rank_process import RankPipes, RankSpec, rank_main
from engine.parallel.shared_exchange import SharedExchange

SLOW_S = 5.0
PATIENCE_S = 1.5
"""What ranks have for each other, far less than the graph takes."""


def slow_first_compilation(seconds: float) -> None:
    """Every further process-wide use of the `aten` compiler is quick again."""
    compile_at_once = Aten.compile

    def compile_slowly(
        self: Aten, name: str, graph: fx.GraphModule, inputs: Sequence[torch.Tensor]
    ) -> Compiled:
        Aten.compile = compile_at_once  # type: ignore[method-assign]
        time.sleep(seconds)
        return compile_at_once(self, name, graph, inputs)

    Aten.compile = compile_slowly  # type: ignore[method-assign]


def _main(seconds: float) -> Callable[[RankSpec, RankPipes, Any], None]:
    def main(spec: RankSpec, pipes: RankPipes, ring_buffer: Any) -> None:
        if spec.rank == 1:
            slow_first_compilation(seconds)
        rank_main(replace(spec, group_timeout_s=PATIENCE_S), pipes, ring_buffer)

    return main


def slow_main(spec: RankSpec, pipes: RankPipes, ring_buffer: Any) -> None:
    """Rank 1 takes SLOW_S."""
    _main(SLOW_S)(spec, pipes, ring_buffer)


def endless_main(spec: RankSpec, pipes: RankPipes, ring_buffer: Any) -> None:
    """Rank 1 does not come to an end."""
    _main(3600.0)(spec, pipes, ring_buffer)


def secretive_main(spec: RankSpec, pipes: RankPipes, ring_buffer: Any) -> None:
    """Rank 1 takes SLOW_S and its board does not say so."""
    SharedExchange.note_compilation = lambda _: None  # type: ignore[method-assign]
    slow_main(spec, pipes, ring_buffer)
