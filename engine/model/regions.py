"""The regions of a block as functions of named tensors, and back from their results.

What a layer reads of a step is laid out flat here, the same way for all layers of a kind; ids of
layers stay outside, so that the graph of one serves the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from engine.cache.step_inputs import RatioInputs, StepInputs
from engine.config.model import LayerRole
from engine.graphs.buckets import Bucket
from engine.model.block import Attended, Expansion, Residual, Routed
from engine.model.context import AttentionBuffer, Selection, StepContext
from engine.model.moe import Routing
from engine.model.rope_tables import Rotation

__all__ = [
    "AttendArguments",
    "AttendResults",
    "RegionShapes",
    "RouteArguments",
    "RouteResults",
    "attend_arguments",
    "attend_results",
    "layer_step",
    "publish",
    "region_shapes",
    "residual_of",
    "route_results",
    "routed_of",
]


class AttendArguments(NamedTuple):
    """See engine.model.block, engine.cache.step_inputs and engine.model.context for shapes."""

    streams: Tensor
    pre: Tensor
    y: Tensor | None
    post: Tensor | None
    comb: Tensor | None
    window_indices: Tensor
    ring_rows: Tensor
    ring_sources: Tensor
    ring_targets: Tensor
    cos: Tensor
    sin: Tensor
    minus_sin: Tensor
    row_sequences: Tensor | None
    num_visible: Tensor | None
    scope_rows: Tensor | None
    scope_offset: Tensor | None
    group_sources: Tensor | None
    entry_rows: Tensor | None
    entry_positions: Tensor | None
    tail_sources: Tensor | None
    tail_rows: Tensor | None
    entry_cos: Tensor | None
    entry_sin: Tensor | None
    entry_minus_sin: Tensor | None
    engram_rows: Tensor | None
    ring: Tensor
    tails: Tensor | None
    compressed: Tensor | None
    index_pool: Tensor | None
    buffer: Tensor | None
    index_keys: Tensor | None
    indices: Tensor | None
    candidates: Tensor | None


class AttendResults(NamedTuple):
    """Fields of Attended, then what the layer publishes (None where it publishes nothing)."""

    partial: Tensor
    streams: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor
    tap: Tensor | None
    buffer: Tensor | None
    index_keys: Tensor | None
    indices: Tensor | None
    candidates: Tensor | None


class RouteArguments(NamedTuple):
    """What `route` reads beside weights."""

    y: Tensor
    streams: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor


class RouteResults(NamedTuple):
    """Fields of Routed, its routing among them."""

    x: Tensor
    expert_ids: Tensor
    weights: Tensor
    shared: Tensor | None
    streams: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor


RegionShapes = tuple[tuple[int, ...] | None, ...]
"""Of what layers read of a step."""


def region_shapes(inputs: StepInputs) -> RegionShapes:
    """Shapes that must be equal in all steps of a bucket."""
    read = [
        inputs.window_indices,
        inputs.ring_rows,
        inputs.ring_sources,
        inputs.ring_targets,
        inputs.row_sequences,
        inputs.engram_rows,
    ]
    for _, one in sorted(inputs.by_ratio.items()):
        read += _of_ratio(one)
    return tuple(None if tensor is None else tuple(tensor.shape) for tensor in read)


@dataclass(frozen=True, slots=True)
class _LayerState:
    """The caches of one layer, found by its id as in CacheState."""

    rings: dict[int, Tensor]
    tails: dict[int, Tensor | None]
    compressed: dict[int, Tensor | None]
    index_keys: dict[int, Tensor | None]


def attend_arguments(role: LayerRole, residual: Residual, step: StepContext) -> AttendArguments:
    """What one layer reads of a step."""
    inputs, state, selection = step.inputs, step.state, step.selection
    rotation = step.rotations["compress" if role.ratio else "main"]
    own, layer, engram = role.owns_kv, role.layer_id, role.engram_index
    return AttendArguments(
        residual.streams,
        residual.pre,
        *_expansion(residual.expansion),
        inputs.window_indices,
        inputs.ring_rows,
        inputs.ring_sources,
        inputs.ring_targets,
        rotation.cos,
        rotation.sin,
        rotation.minus_sin,
        inputs.row_sequences if role.runs_indexer else None,
        *_of_ratio(inputs.by_ratio.get(role.ratio)),
        *_turns(step.entry_rotations[role.ratio] if own else None),
        None if engram is None or inputs.engram_rows is None else inputs.engram_rows[engram],
        state.rings[layer],
        state.tails.get(layer),
        state.compressed.get(layer),
        state.index_keys.get(layer),
        None if own else selection.buffers[role.kv_owner].rows,
        selection.index_keys if role.runs_indexer and not own else None,
        selection.indices if role.ratio and not role.runs_indexer else None,
        selection.candidates if role.uses_candidates else None,
    )


_Three = tuple[Tensor | None, Tensor | None, Tensor | None]
_Eight = tuple[
    Tensor | None,
    Tensor | None,
    Tensor | None,
    Tensor | None,
    Tensor | None,
    Tensor | None,
    Tensor | None,
    Tensor | None,
]


def _expansion(last: Expansion | None) -> _Three:
    return (None, None, None) if last is None else (last.y, last.post, last.comb)


def _turns(rotation: Rotation | None) -> _Three:
    if rotation is None:
        return (None, None, None)
    return (rotation.cos, rotation.sin, rotation.minus_sin)


def _of_ratio(one: RatioInputs | None) -> _Eight:
    """The tensors of RatioInputs, in its order."""
    if one is None:
        return (None, None, None, None, None, None, None, None)
    return (
        one.num_visible,
        one.scope_rows,
        one.scope_offset,
        one.group_sources,
        one.entry_rows,
        one.entry_positions,
        one.tail_sources,
        one.tail_rows,
    )


def layer_step(role: LayerRole, bucket: Bucket, given: AttendArguments) -> StepContext:
    """A step that holds what the layer reads, and nothing else."""
    layer, nothing = role.layer_id, given.window_indices.new_empty(0)
    engram_rows: Any = {role.engram_index: given.engram_rows}
    entry: tuple[Any, ...] = (given.entry_cos, given.entry_sin, given.entry_minus_sin)
    by_ratio = {}
    if given.num_visible is not None:
        by_ratio[role.ratio] = _ratio_inputs(dict(bucket.scopes)[role.ratio], given)
    inputs = StepInputs(
        num_rows=bucket.padded_rows,
        padded_rows=bucket.padded_rows,
        num_sequences=bucket.num_sequences,
        token_ids=nothing,
        positions=nothing,
        is_real=nothing,
        window_indices=given.window_indices,
        ring_rows=given.ring_rows,
        ring_sources=given.ring_sources,
        ring_targets=given.ring_targets,
        row_spans=(),
        row_sequences=given.row_sequences,
        by_ratio=by_ratio,
        engram_rows=engram_rows,
        logits_rows=nothing,
        path=bucket.path,
    )
    state: Any = _LayerState(
        {layer: given.ring},
        {layer: given.tails},
        {layer: given.compressed},
        {layer: given.index_pool},
    )
    rotation = Rotation(given.cos, given.sin, given.minus_sin)
    buffers = {}
    if given.buffer is not None:
        buffers[role.kv_owner] = _buffer(given.buffer, bucket, given.ring_rows)
    return StepContext(
        inputs=inputs,
        state=state,
        rotations={"main": rotation, "compress": rotation},
        entry_rotations={role.ratio: Rotation(*entry)},
        selection=Selection(buffers, given.index_keys, given.indices, given.candidates),
        taps=[],
    )


def _ratio_inputs(scope: int, given: AttendArguments) -> RatioInputs:
    """The inverse of `_of_ratio`."""
    tensors: tuple[Any, ...] = (
        given.num_visible,
        given.scope_rows,
        given.scope_offset,
        given.group_sources,
        given.entry_rows,
        given.entry_positions,
        given.tail_sources,
        given.tail_rows,
    )
    return RatioInputs(scope, *tensors)


def _buffer(rows: Tensor, bucket: Bucket, ring_rows: Tensor) -> AttentionBuffer:
    num_ring_rows = ring_rows.shape[0]
    return AttentionBuffer.over(rows, num_ring_rows + bucket.padded_rows, num_ring_rows)


def residual_of(given: AttendArguments) -> Residual:
    """The residual among a region's arguments."""
    if given.y is None or given.post is None or given.comb is None:
        return Residual(given.streams, given.pre)
    return Residual(given.streams, given.pre, Expansion(given.y, given.post, given.comb))


def attend_results(role: LayerRole, attended: Attended, step: StepContext) -> AttendResults:
    """What a layer's first region gives and publishes."""
    selection, own = step.selection, role.owns_kv
    return AttendResults(
        attended.partial,
        attended.streams,
        attended.pre,
        attended.post,
        attended.comb,
        attended.tap,
        selection.buffers[role.layer_id].rows if own else None,
        selection.index_keys if own else None,
        selection.indices if role.runs_indexer else None,
        selection.candidates if role.publishes_candidates else None,
    )


def publish(role: LayerRole, bucket: Bucket, results: AttendResults, step: StepContext) -> Attended:
    """Hand on what a layer's first region gave."""
    selection = step.selection
    if results.buffer is not None:
        rows = _buffer(results.buffer, bucket, step.inputs.ring_rows)
        selection.buffers[role.layer_id] = rows
        selection.index_keys = results.index_keys
    if results.indices is not None:
        selection.indices = results.indices
    if results.candidates is not None:
        selection.candidates = results.candidates
    return Attended(*results[:6])


def routed_of(results: RouteResults) -> Routed:
    """The second region's results as the block reads them."""
    x, expert_ids, weights, shared, *rest = results
    return Routed(x, Routing(expert_ids, weights, shared), *rest)


def route_results(routed: Routed) -> RouteResults:
    """What a layer's second region gives."""
    routing = routed.routing
    return RouteResults(
        routed.x,
        routing.expert_ids,
        routing.weights,
        routing.shared,
        routed.streams,
        routed.pre,
        routed.post,
        routed.comb,
    )
