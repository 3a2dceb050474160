"""The graphs of one stack of layers: one for each kind of region and bucket, made on first use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from engine.graphs.capture import Flat, capture
from engine.graphs.compilers import Compiler
from harness.core.errors import UsageError

__all__ = ["RegionGraph", "RegionGraphs"]


@dataclass(frozen=True, slots=True)
class RegionGraph:
    """One graph.

    Attributes:
        run: takes the used tensors, gives the present results.
        used, present: see engine.graphs.capture.CapturedGraph.
    """

    run: Callable[..., Sequence[torch.Tensor]]
    used: tuple[int, ...]
    present: tuple[bool, ...]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Results of the captured function, in its order."""
        results = iter(self.run(*[tensors[place] for place in self.used]))
        return [next(results) if is_there else None for is_there in self.present]


class RegionGraphs:
    """Graphs by kind and bucket.

    Args:
        buckets: all that a step can be in; their number times that of the kinds is the most
            graphs there will ever be.

    Attributes:
        kinds: regions by kind that this stack has; others are refused.
        announce: told the kind of each graph before it is made.
        num_cached: graphs read back from disk.
        num_calls: regions run since the counts were last taken.
        num_compiled: graphs built since then; one read back from disk is none.
    """

    def __init__(self, compiler: Compiler, buckets: frozenset[Hashable]) -> None:
        self._compiler = compiler
        self._buckets = buckets
        self._graphs: dict[tuple[str, Hashable], RegionGraph] = {}
        self._patterns: dict[tuple[str, Hashable], tuple[bool, ...]] = {}
        self.kinds: set[str] = set()
        self.announce: Callable[[str], object] = _to_nobody
        self.num_compiled = 0
        self.num_cached = 0
        self.num_calls = 0

    def find(self, kind: str, bucket: Hashable, pattern: tuple[bool, ...]) -> RegionGraph | None:
        """The graph of a kind in a bucket, None before it is built.

        Args:
            pattern: which of the region's arguments are there.

        Raises:
            UsageError: a layer calls the graph with other arguments than it was made for.
        """
        graph = self._graphs.get((kind, bucket))
        if graph is not None and self._patterns[kind, bucket] != pattern:
            raise UsageError(f"region {kind!r}: called with other arguments than its graph takes")
        return graph

    def build(
        self,
        kind: str,
        bucket: Hashable,
        pattern: tuple[bool, ...],
        task: Flat,
        tensors: Sequence[torch.Tensor],
    ) -> RegionGraph:
        """Capture and compile the graph of task(*tensors).

        Raises:
            UsageError: steps can be in no such bucket.
        """
        if bucket not in self._buckets:
            raise UsageError(
                f"region {kind!r}: {bucket} is none of the {len(self._buckets)} buckets of this "
                "engine: graphs would have no bound"
            )
        self.announce(kind)
        captured = capture(task, tensors)
        used = [tensors[place] for place in captured.used]
        compiled = self._compiler.compile(f"{kind} {bucket}", captured.graph, used)
        if compiled.was_cached:
            self.num_cached += 1
        else:
            self.num_compiled += 1
        graph = RegionGraph(compiled.run, captured.used, captured.present)
        self._graphs[kind, bucket] = graph
        self._patterns[kind, bucket] = pattern
        return graph

    def take_counts(self) -> tuple[int, int]:
        """Regions run, and graphs built, since the last time."""
        counts = self.num_calls, self.num_compiled
        self.num_calls = self.num_compiled = 0
        return counts

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def most(self) -> int:
        """Graphs there can ever be: kinds times buckets."""
        return len(self.kinds) * len(self._buckets)

    def check(self) -> None:
        """Every kind has one graph in every bucket that was met; `build` knows no other bucket.

        Raises:
            UsageError: it has more, fewer, or one of an unknown kind.
        """
        buckets = {bucket for _, bucket in self._graphs}
        expected = len(self.kinds) * len(buckets)
        if len(self._graphs) != expected or {kind for kind, _ in self._graphs} - self.kinds:
            raise UsageError(
                f"{len(self._graphs)} region graphs, {len(self.kinds)} kinds in {len(buckets)} "
                f"buckets make {expected}: layers of a kind do not share their graph"
            )


def _to_nobody(kind: str) -> None:
    """Without a parent there is nobody to tell."""
