"""Runs the two regions of every block as graphs that all blocks of a kind share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from engine.cache.step_inputs import StepInputs
from engine.graphs.buckets import Bucket, bucket_of
from engine.graphs.prepared import PreparedForms, prepared, recording
from engine.graphs.region_graphs import RegionGraph, RegionGraphs
from engine.graphs.region_times import kind_of_layer
from engine.graphs.tensor_tree import flatten, rebuild
from engine.model.base import Runtime
from engine.model.block import (
    Attended,
    AttendRegion,
    AttendWeights,
    Block,
    Residual,
    Routed,
    RouteRegion,
    RouteWeights,
)
from engine.model.context import StepContext
from engine.model.moe import ExpertShape, Moe
from engine.model.regions import (
    AttendArguments,
    AttendResults,
    RegionShapes,
    RouteArguments,
    RouteResults,
    attend_arguments,
    attend_results,
    layer_step,
    publish,
    region_shapes,
    residual_of,
    route_results,
    routed_of,
)
from engine.ops import BoundOps
from harness.core.errors import UsageError

__all__ = ["CompiledStack"]

Results = tuple[Tensor | None, ...]


@dataclass(eq=False, slots=True)
class _Region:
    """One region of one layer.

    Attributes:
        kind: regions of a kind share graphs.
        weights: of the layer; a dataclass of tensors and quantised weights.
        body: (weights, arguments, bucket) -> results, op by op.
        tensors: of the weights, in the order the graphs take them; set on first use.
    """

    kind: str
    weights: Any
    body: Callable[[Any, Any, Bucket], Results]
    tensors: list[Tensor] | None = None


class CompiledStack:
    """The blocks of one stack, their graphs and the bucket of the step they are in."""

    def __init__(
        self, runtime: Runtime, experts: ExpertShape, blocks: list[Block], graphs: RegionGraphs
    ) -> None:
        self._graphs = graphs
        self._ops = runtime.ops
        self._ops.unheard = "ops within compiled regions are heard by nobody: --enforce-eager"
        # Ops within a region are not counted, timed or observed: the region is one launch.
        self._captured = replace(runtime, ops=BoundOps(runtime.ops.table, runtime.numerics))
        self._experts = experts
        self._forms: dict[str, PreparedForms] = {}
        self._bucket: Bucket | None = None
        self._shapes: dict[Bucket, RegionShapes] = {}
        for place, block in enumerate(blocks):
            self._compile(block, is_first=place == 0)

    def enter_bucket(self, inputs: StepInputs) -> None:
        """Run every region as graphs of this step's bucket from now on.

        Raises:
            UsageError: steps of the bucket had other shapes.
        """
        bucket, shapes = bucket_of(inputs), region_shapes(inputs)
        if self._shapes.setdefault(bucket, shapes) != shapes:
            raise UsageError(f"{bucket}: its graphs were made for steps of other shapes")
        self._bucket = bucket

    def _compile(self, block: Block, *, is_first: bool) -> None:
        role = block.role
        attending = self._attend_region(block, is_first=is_first)
        routing = self._route_region(block)
        self._graphs.kinds |= {attending.kind, routing.kind}

        def attend(residual: Residual, step: StepContext) -> Attended:
            results = self._run(attending, attend_arguments(role, residual, step))
            assert self._bucket is not None
            return publish(role, self._bucket, AttendResults(*results), step)  # type: ignore[arg-type]

        def route(attended: Attended, y: Tensor) -> Routed:
            waiting = (attended.streams, attended.pre, attended.post, attended.comb)
            results = self._run(routing, RouteArguments(y, *waiting))
            return routed_of(RouteResults(*results))  # type: ignore[arg-type]

        block.attend, block.route = attend, route

    def _attend_region(self, block: Block, *, is_first: bool) -> _Region:
        role, runtime = block.role, self._captured

        def body(weights: AttendWeights, given: AttendArguments, bucket: Bucket) -> Results:
            step = layer_step(role, bucket, given)
            attended = AttendRegion(runtime, role, weights).run(residual_of(given), step)
            return attend_results(role, attended, step)

        # The first layer has no expansion of a layer before it.
        kind = f"{kind_of_layer(role)}{' first' if is_first else ''} / attention"
        return _Region(kind, AttendWeights.of(block.weights), body)

    def _route_region(self, block: Block) -> _Region:
        role, runtime, experts = block.role, self._captured, self._experts

        def body(weights: RouteWeights, given: RouteArguments, _: Bucket) -> Results:
            moe = Moe(runtime, role.layer_id, experts, weights.moe)
            attended = Attended(given.y, *given[1:5], tap=None)
            return route_results(RouteRegion(runtime, weights, moe).run(attended, given.y))

        # How a layer attends does not matter here, but what this rank has of it.
        weights = RouteWeights.of(block.weights)
        has_shared = weights.moe.shared_w13 is not None
        return _Region("router" if has_shared else "router alone", weights, body)

    def _run(self, region: _Region, given: AttendArguments | RouteArguments) -> list[Tensor | None]:
        pattern = tuple(one is not None for one in given)
        graph = self._graphs.find(region.kind, self._bucket, pattern)
        if graph is None:
            graph = self._build(region, given, pattern)
        if region.tensors is None:
            region.tensors = flatten(prepared(region.weights, self._forms[region.kind]))[0]
        self._ops.num_launches += 1
        self._graphs.num_calls += 1
        return graph([*region.tensors, *(one for one in given if one is not None)])

    def _build(
        self,
        region: _Region,
        given: AttendArguments | RouteArguments,
        pattern: tuple[bool, ...],
    ) -> RegionGraph:
        bucket, body = self._bucket, region.body
        assert bucket is not None
        if region.kind not in self._forms:
            weights, self._forms[region.kind] = recording(region.weights)
            # On copies: the region writes caches, and will write them again as a graph.
            copies = type(given)(*(None if one is None else one.clone() for one in given))  # type: ignore[arg-type]
            body(weights, copies, bucket)
        tensors, form = flatten(prepared(region.weights, self._forms[region.kind]))

        def task(*stand_ins: Tensor) -> Results:
            following: Iterator[Tensor] = iter(stand_ins)
            weights = rebuild(form, following)
            arguments = type(given)(*(next(following) if there else None for there in pattern))  # type: ignore[arg-type]
            return body(weights, arguments, bucket)

        every = [*tensors, *(one for one in given if one is not None)]
        return self._graphs.build(region.kind, bucket, pattern, task, every)
