"""One block with shifted hyper-connections (model.md §2.3) and its engram (§2.9).

A block is cut where ranks exchange and where values decide a shape:

    attend   the last block's output into the streams, engram, mixing, attention
    -        attention output summed over ranks
    route    into the streams, mixing, router, shared expert
    -        routed experts, summed over ranks

`attend` and `route` are pure functions of tensors: weights, caches and indices. They may be
compiled as regions, one graph for all layers of a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine.config.model import LayerRole
from engine.graphs.region_times import RegionTimes, kind_of_layer
from engine.model.attention import Attention
from engine.model.base import Runtime
from engine.model.context import StepContext
from engine.model.engram import Engram
from engine.model.moe import ExpertShape, Moe, Routing
from engine.weights.tensors import (
    AttentionWeights,
    BlockWeights,
    EngramWeights,
    HyperWeights,
    MoeWeights,
)

__all__ = [
    "AttendRegion",
    "AttendWeights",
    "Attended",
    "Block",
    "Expansion",
    "Mixes",
    "Residual",
    "RouteRegion",
    "RouteWeights",
    "Routed",
    "hyper_mixes",
]

Mixes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Expansion:
    """A sublayer's output y [T, d] on its way into the streams; post [T, m], comb [T, m, m]."""

    y: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


@dataclass(frozen=True, slots=True)
class Residual:
    """What goes from block to block.

    Attributes:
        streams: [T, m, d], before `expansion`.
        pre: [T, m], what the next sublayer collapses with.
        expansion: the last sublayer's; None where the streams are complete.
    """

    streams: torch.Tensor
    pre: torch.Tensor
    expansion: Expansion | None = None

    def complete(self, runtime: Runtime) -> Residual:
        """The same with the last sublayer's output in the streams."""
        if self.expansion is None:
            return self
        last = self.expansion
        streams = runtime.ops.hc_expand(last.y, self.streams, last.post, last.comb)
        return Residual(streams, self.pre)


@dataclass(frozen=True, slots=True)
class Attended:
    """After `attend`: a partial sum over ranks and what waits for it; `tap` [T, d] or None."""

    partial: torch.Tensor
    streams: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor
    tap: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Routed:
    """After `route`: the experts' input x [T, d], its routing and what waits for their sum."""

    x: torch.Tensor
    routing: Routing
    streams: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


Attend = Callable[[Residual, StepContext], Attended]
Route = Callable[[Attended, torch.Tensor], Routed]


def hyper_mixes(runtime: Runtime, streams: torch.Tensor, weights: HyperWeights) -> Mixes:
    """pre [T, m], post [T, m], comb [T, m, m] of streams [T, m, d]."""
    config = runtime.config
    mixes: Mixes = runtime.ops.hc_mixes(
        streams,
        weights.fn,
        weights.base,
        weights.scale,
        config.norm_eps,
        config.hc_eps,
        config.hc_iterations,
    )
    return mixes


@dataclass(frozen=True, slots=True)
class AttendWeights:
    """What the first region reads of a block's weights."""

    norm: torch.Tensor
    mixing: HyperWeights
    attention: AttentionWeights
    engram: EngramWeights | None

    @classmethod
    def of(cls, weights: BlockWeights) -> AttendWeights:
        """A block's share."""
        return cls(weights.attn_norm, weights.hc_attn, weights.attention, weights.engram)


@dataclass(frozen=True, slots=True)
class RouteWeights:
    """What the second region reads of a block's weights."""

    norm: torch.Tensor
    mixing: HyperWeights
    moe: MoeWeights

    @classmethod
    def of(cls, weights: BlockWeights) -> RouteWeights:
        """A block's share; routed experts run outside of regions."""
        moe = replace(weights.moe, w13=None, w2=None)
        return cls(weights.ffn_norm, weights.hc_ffn, moe)


class AttendRegion:
    """First region, op by op."""

    def __init__(self, runtime: Runtime, role: LayerRole, weights: AttendWeights) -> None:
        self._runtime = runtime
        self._role = role
        self._weights = weights
        self.attention = Attention(runtime, role, weights.attention)
        self._engram = Engram(runtime, role, weights.engram) if weights.engram else None

    def run(self, residual: Residual, step: StepContext) -> Attended:
        """See engine.model.block."""
        runtime, weights = self._runtime, self._weights
        residual = residual.complete(runtime)
        streams = residual.streams
        if self._engram is not None:
            streams = self._engram.run(streams, step)
        tap = None
        if self._role.is_tap:
            tap = runtime.as_activation(streams.to(runtime.accumulate).mean(dim=1))
        pre, post, comb = hyper_mixes(runtime, streams, weights.mixing)
        x = runtime.ops.hc_collapse(streams, residual.pre)
        x = runtime.ops.rms_norm(x, weights.norm, runtime.config.norm_eps)
        return Attended(self.attention.begin(x, step), streams, pre, post, comb, tap)


class RouteRegion:
    """Second region, op by op; `moe` has the experts that follow it."""

    def __init__(self, runtime: Runtime, weights: RouteWeights, moe: Moe) -> None:
        self._runtime = runtime
        self._weights = weights
        self.moe = moe

    def run(self, attended: Attended, y: torch.Tensor) -> Routed:
        """y [T, d] is the attention's output."""
        runtime, weights = self._runtime, self._weights
        streams = runtime.ops.hc_expand(y, attended.streams, attended.post, attended.comb)
        pre, post, comb = hyper_mixes(runtime, streams, weights.mixing)
        x = runtime.ops.hc_collapse(streams, attended.pre)
        x = runtime.ops.rms_norm(x, weights.norm, runtime.config.norm_eps)
        return Routed(x, self.moe.begin(x), streams, pre, post, comb)


class Block:
    """Attention and experts around the residual streams.

    Attributes:
        attend, route: the two regions; whoever compiles or times them puts a callable in place.
    """

    attend: Attend
    route: Route

    def __init__(
        self, runtime: Runtime, role: LayerRole, experts: ExpertShape, weights: BlockWeights
    ) -> None:
        self.role = role
        self.weights = weights
        self._moe = Moe(runtime, role.layer_id, experts, weights.moe)
        attending = AttendRegion(runtime, role, AttendWeights.of(weights))
        self._attention = attending.attention
        self.attend = attending.run
        self.route = RouteRegion(runtime, RouteWeights.of(weights), self._moe).run

    def time_regions(self, times: RegionTimes) -> None:
        """Time this layer and its parts from now on."""
        kind = kind_of_layer(self.role)
        self.run = times.timed(kind, "", self.run)  # type: ignore[method-assign]
        self.attend = times.timed(kind, "attention", self.attend)
        self._attention.finish = times.timed(  # type: ignore[method-assign]
            kind, "attention sum", self._attention.finish
        )
        self.route = times.timed(kind, "router", self.route)
        self._moe.finish = times.timed(  # type: ignore[method-assign]
            kind, "experts", self._moe.finish
        )

    def run(self, residual: Residual, step: StepContext) -> Residual:
        """The residual after this block."""
        attended = self.attend(residual, step)
        if attended.tap is not None:
            step.taps.append(attended.tap)
        y = self._attention.finish(attended.partial)
        routed = self.route(attended, y)
        y = self._moe.finish(routed.x, step.inputs.is_real, routed.routing)
        return Residual(routed.streams, routed.pre, Expansion(y, routed.post, routed.comb))
