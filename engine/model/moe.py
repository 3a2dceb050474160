"""Mixture of experts with a shared expert (model.md §2.8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.base import Runtime
from engine.parallel.expert_exchange import ExpertRows
from engine.weights.tensors import MoeWeights

__all__ = ["ExpertShape", "Moe", "Routing"]


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Experts of all ranks, and how many a token visits."""

    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Routing:
    """What a layer knows before any expert runs.

    Attributes:
        expert_ids, weights: [T, top_k] of all ranks' experts.
        shared: [T, d] of the shared expert, complete or this rank's part; None without it.
    """

    expert_ids: torch.Tensor
    weights: torch.Tensor
    shared: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs (row * top_k + choice) sorted by this rank's experts; those of others come last.

    Attributes:
        order: [R * top_k] pairs.
        expert: [R * top_k] of each, from 0 within the rank; as many as the rank has for others'.
        group_sizes: rows of each expert of the rank.
    """

    order: torch.Tensor
    expert: torch.Tensor
    group_sizes: torch.Tensor


class Moe:
    """One layer's experts on this rank; every rank routes the rows of its batch.

    Legend: T rows of the batch, R rows of all batches (T where there is one), P pairs of a row
    and one of this rank's experts.
    """

    def __init__(
        self, runtime: Runtime, layer_index: int, shape: ExpertShape, weights: MoeWeights
    ) -> None:
        self._runtime = runtime
        self._layer = layer_index
        self._shape = shape
        self._weights = weights
        self._span = runtime.layout.expert_span(shape.num_experts, layer_index)
        split = runtime.layout.size > 1 and runtime.layout.shared_width is not None
        self._sums_shared_apart = split and runtime.numerics.activation == "bfloat16"

    def run(self, x: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
        """Output [T, d] of x [T, d]; rows that are padding meet no routed expert."""
        return self.finish(x, is_real, self.begin(x))

    def begin(self, x: torch.Tensor) -> Routing:
        """Routing and shared expert of x [T, d]: no exchange, and shapes that no value decides.

        A compiled region may hold this; `finish` stays outside.
        """
        config, weights = self._runtime.config, self._weights
        expert_ids, route_weights = self._runtime.ops.router(
            x,
            weights.gate,
            weights.bias,
            self._shape.top_k,
            config.route_scale,
            config.gate_temp,
            config.normalise_experts,
        )
        return Routing(expert_ids, route_weights, self._shared(x))

    def finish(self, x: torch.Tensor, is_real: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Output [T, d] once `begin` has routed x.

        Under a capacity the experts run on slots of fixed shape first, as a device's graph does;
        where an expert of any rank got more rows than it has slots, all ranks run the layer's
        experts again without a limit, exchange included.
        """
        exchange = self._runtime.exchange
        nowhere = ~is_real.unsqueeze(1)
        rows = ExpertRows(x, routing.expert_ids.masked_fill(nowhere, -1), routing.weights)
        if exchange.capacity:
            total, num_overflows = self._limited(rows, routing.shared)
            if not exchange.any_overflows(num_overflows, self._layer):
                return self._runtime.as_activation(total)
        arrived = exchange.spread(rows, self._layer)
        pairs = self._local_pairs(arrived.expert_ids)
        total = self._collected(self._routed(arrived, pairs), routing.shared)
        return self._runtime.as_activation(total)

    def _limited(
        self, rows: ExpertRows, shared: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums [T, d] under the capacity, and how many experts were given more rows."""
        exchange = self._runtime.exchange
        arrived = exchange.spread(rows, self._layer)
        pairs = self._local_pairs(arrived.expert_ids)
        num_overflows = (pairs.group_sizes > exchange.capacity).sum()
        return self._collected(self._slotted(arrived, pairs), shared), num_overflows

    def _collected(self, routed: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
        """Unrounded sums [T, d] of this batch's rows, shared expert included."""
        runtime = self._runtime
        if not self._sums_shared_apart:
            return runtime.exchange.collect(routed, shared, self._layer)
        # The shared expert's output rounds as a whole: its partial sums travel beside.
        assert shared is not None
        total, whole = runtime.exchange.collect_apart(routed, shared, self._layer)
        return total + runtime.as_activation(whole).to(runtime.accumulate)

    def _shared(self, x: torch.Tensor) -> torch.Tensor | None:
        """The shared expert's output or partial sum [T, d], None on a rank without it."""
        runtime, weights = self._runtime, self._weights
        if weights.shared_w13 is None or weights.shared_w2 is None:
            return None
        limit = runtime.config.swiglu_limit
        gate, up = runtime.ops.linear_fp8(x, weights.shared_w13, "activation").chunk(2, dim=1)
        inner = runtime.ops.swiglu(gate, up, limit, None)
        output = "accumulate" if self._sums_shared_apart else "activation"
        y: torch.Tensor = runtime.ops.linear_fp8(inner, weights.shared_w2, output)
        return y.to(runtime.accumulate)

    def _routed(self, rows: ExpertRows, pairs: _Pairs) -> torch.Tensor:
        """Sum [R, d] of this rank's routed experts, unrounded, of all rows that arrived."""
        total = rows.x.new_zeros(rows.x.shape, dtype=self._runtime.accumulate)
        if not self._has_experts:
            return total
        # The meta device has no values: there the worst case stands for the count.
        is_unknown = pairs.order.is_meta
        num_local = len(pairs.order) if is_unknown else int(pairs.group_sizes.sum())
        order = pairs.order[:num_local]
        tokens = order // self._shape.top_k
        y_Pd = self._experts(rows.x[tokens], rows.weights.flatten()[order], pairs.group_sizes)
        return total.index_add_(0, tokens, y_Pd.to(self._runtime.accumulate))

    def _slotted(self, rows: ExpertRows, pairs: _Pairs) -> torch.Tensor:
        """As `_routed`, on [experts, capacity] slots; rows beyond the capacity are left out.

        No shape depends on a value. Rows of a token are added in the same order, so that without
        overflow the sums are equal.
        """
        total = rows.x.new_zeros(rows.x.shape, dtype=self._runtime.accumulate)
        if not self._has_experts:
            return total
        num_local, capacity = len(pairs.group_sizes), self._runtime.exchange.capacity
        num_slots = num_local * capacity
        firsts = torch.cumsum(pairs.group_sizes, 0) - pairs.group_sizes
        first = torch.cat([firsts, firsts.new_zeros(1)])[pairs.expert]
        place = torch.arange(len(pairs.order), device=first.device) - first
        has_slot = (pairs.expert < num_local) & (place < capacity)
        # One slot more takes what has none; nothing is read from it.
        slots = torch.where(has_slot, pairs.expert * capacity + place, num_slots)
        tokens = pairs.order // self._shape.top_k
        x_slots = rows.x.new_zeros(num_slots + 1, rows.x.shape[1])
        x_slots[slots] = rows.x[tokens]
        weights = rows.weights.new_zeros(num_slots + 1)
        weights[slots] = rows.weights.flatten()[pairs.order]
        sizes = torch.full_like(pairs.group_sizes, capacity)
        y = self._experts(x_slots[:-1], weights[:-1], sizes).to(self._runtime.accumulate)
        y = torch.cat([y, y.new_zeros(1, y.shape[1])])
        return total.index_add_(0, tokens, y[slots])

    @property
    def _has_experts(self) -> bool:
        return self._weights.w13 is not None

    def _experts(
        self, x: torch.Tensor, route_weights: torch.Tensor, group_sizes: torch.Tensor
    ) -> torch.Tensor:
        """Weighted outputs of rows x that are sorted by expert."""
        ops, weights = self._runtime.ops, self._weights
        gate, up = ops.linear_fp4_grouped(x, weights.w13, group_sizes).chunk(2, dim=1)
        inner = ops.swiglu(gate, up, self._runtime.config.swiglu_limit, route_weights)
        y: torch.Tensor = ops.linear_fp4_grouped(inner, weights.w2, group_sizes)
        return y

    def _local_pairs(self, expert_ids: torch.Tensor) -> _Pairs:
        first, last = self._span
        num_local = last - first
        local = expert_ids - first
        is_local = (local >= 0) & (local < num_local)
        # What is not this rank's sorts behind its experts.
        key = torch.where(is_local, local, num_local).flatten()
        expert, order = key.sort(stable=True)
        counts = torch.zeros(num_local + 1, dtype=torch.int64, device=key.device)
        counts.index_add_(0, key, torch.ones_like(key))
        return _Pairs(order, expert, counts[:num_local])
