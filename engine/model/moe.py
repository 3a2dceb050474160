"""Mixture of experts with a shared expert (model.md §2.8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.base import Runtime
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


class Moe:
    """One layer's experts on this rank; every rank routes all rows.

    Legend: T rows, P (token, expert) pairs of this rank, I expert width.
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
        """Output [T, d] once `begin` has routed x."""
        runtime = self._runtime
        routed = self._routed(x, is_real, routing)
        shared = routing.shared
        if shared is None:
            total = runtime.group.sum(routed, f"moe.{self._layer}")
        elif self._sums_shared_apart:
            # The shared expert's output rounds as a whole: its partial sums travel beside.
            both = runtime.group.sum(torch.stack([routed, shared]), f"moe.{self._layer}")
            total = both[0] + runtime.as_activation(both[1]).to(runtime.accumulate)
        else:
            total = runtime.group.sum(routed + shared, f"moe.{self._layer}")
        return runtime.as_activation(total)

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

    def _routed(self, x: torch.Tensor, is_real: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Sum of this rank's routed experts [T, d], unrounded."""
        runtime, weights, config = self._runtime, self._weights, self._runtime.config
        total = x.new_zeros(x.shape, dtype=runtime.accumulate)
        if weights.w13 is None or weights.w2 is None:
            return total
        pairs, group_sizes = self._local_pairs(routing.expert_ids, is_real)
        tokens = pairs // self._shape.top_k
        gate, up = runtime.ops.linear_fp4_grouped(x[tokens], weights.w13, group_sizes).chunk(
            2, dim=1
        )
        inner = runtime.ops.swiglu(gate, up, config.swiglu_limit, routing.weights.flatten()[pairs])
        y_Pd = runtime.ops.linear_fp4_grouped(inner, weights.w2, group_sizes)
        return total.index_add_(0, tokens, y_Pd.to(runtime.accumulate))

    def _local_pairs(
        self, expert_ids: torch.Tensor, is_real: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pairs [P] (row * top_k + choice) of this rank, by expert, and rows per expert."""
        first, last = self._span
        num_local = last - first
        local = expert_ids - first
        is_local = (local >= 0) & (local < num_local) & is_real.unsqueeze(1)
        # What is not this rank's sorts behind its experts.
        key = torch.where(is_local, local, num_local).flatten()
        order = key.sort(stable=True).indices
        counts = torch.zeros(num_local + 1, dtype=torch.int64, device=key.device)
        counts.index_add_(0, key, torch.ones_like(key))
        group_sizes = counts[:num_local]
        # The meta device has no values: there the worst case stands for the count.
        num_pairs = key.numel() if key.is_meta else int(group_sizes.sum())
        return order[:num_pairs], group_sizes
