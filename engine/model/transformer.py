"""The whole stack of one rank: a step in, hidden rows and logits out (model.md §2.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.cache.state import CacheState
from engine.cache.step_inputs import StepInputs
from engine.graphs.region_graphs import RegionGraphs
from engine.graphs.region_times import RegionTimes
from engine.model.base import Runtime
from engine.model.block import Block, Residual
from engine.model.compiled_stack import CompiledStack
from engine.model.context import Selection, StepContext
from engine.model.moe import ExpertShape
from engine.model.rope_tables import RopeTables
from engine.weights.tensors import ModelWeights
from harness.core.errors import UsageError

__all__ = ["StreamHook", "Transformer"]

StreamHook = Callable[[int, torch.Tensor], torch.Tensor]
"""Called with a layer id and the streams [T, m, d] after it; returns the streams to go on with."""


class Transformer:
    """Embedding, blocks, final norm and head.

    Attributes:
        stream_hook: sees, and may replace, the residual streams after each layer.
    """

    def __init__(self, runtime: Runtime, weights: ModelWeights, max_positions: int) -> None:
        self._runtime = runtime
        self._weights = weights
        config = runtime.config
        experts = ExpertShape(config.num_experts, config.experts_per_token)
        self._blocks = [
            Block(runtime, role, experts, block)
            for role, block in zip(config.roles, weights.blocks, strict=True)
        ]
        self._vocab_span = runtime.layout.vocab_span(config.vocab_size)
        self.rope = RopeTables(
            config.rope,
            config.rope_dim,
            max_positions,
            runtime.accumulate,
            weights.embed.device,
        )
        self.stream_hook: StreamHook | None = None
        self._experts = experts
        self._compiled: CompiledStack | None = None

    def compile_regions(self, graphs: RegionGraphs) -> None:
        """Run the layers' regions as graphs from now on."""
        self._compiled = CompiledStack(self._runtime, self._experts, self._blocks, graphs)

    def time_regions(self, times: RegionTimes) -> None:
        """Time embedding, every layer by kind, and head from now on."""
        self.first_streams = times.timed(  # type: ignore[method-assign]
            "embedding", "", self.first_streams
        )
        for block in self._blocks:
            block.time_regions(times)
        self.local_logits = times.timed(  # type: ignore[method-assign]
            "head", "", self.local_logits
        )

    def context(self, inputs: StepInputs, state: CacheState) -> StepContext:
        """What the layers of a step share."""
        rotations = {name: self.rope.at(name, inputs.positions) for name in ("main", "compress")}
        entry_rotations = {
            ratio: self.rope.at("compress", ratio_inputs.entry_positions)
            for ratio, ratio_inputs in inputs.by_ratio.items()
        }
        step = StepContext(inputs, state, rotations, entry_rotations, Selection({}), [])
        width = self._runtime.config.head_dim
        empty = state.rings[0].new_empty(0, width)
        step.selection.buffers[None] = step.new_buffer(empty)
        return step

    def run(self, step: StepContext) -> torch.Tensor:
        """Collapsed output x [T, d] before the final norm.

        Raises:
            UsageError: someone listens to layers that run as compiled regions: the last layer's
                expansion lies within the next one's graph.
        """
        if self._compiled is not None:
            if self.stream_hook is not None:
                raise UsageError("streams between compiled regions are not heard: enforce_eager")
            self._compiled.enter_bucket(step.inputs)
        residual = self.first_streams(step.inputs.token_ids)
        for layer_id, block in enumerate(self._blocks):
            residual = block.run(residual, step)
            if self.stream_hook is not None:
                residual = residual.complete(self._runtime)
                streams = self.stream_hook(layer_id, residual.streams)
                residual = Residual(streams, residual.pre)
        return self.collapsed(residual)

    def collapsed(self, residual: Residual) -> torch.Tensor:
        """[T, d] of the residual after the last block."""
        residual = residual.complete(self._runtime)
        x: torch.Tensor = self._runtime.ops.hc_collapse(residual.streams, residual.pre)
        return x

    def first_streams(self, token_ids: torch.Tensor) -> Residual:
        """Streams [T, m, d], all equal to the embedding, and the first pre [T, m]."""
        m = self._runtime.config.hc_mult
        h = self._embed(token_ids)
        streams = h.unsqueeze(1).expand(-1, m, -1).contiguous()
        pre = streams.new_zeros(h.shape[0], m, dtype=self._runtime.accumulate)
        pre[:, 0] = 1
        return Residual(streams, pre)

    def local_logits(self, x: torch.Tensor, norm: torch.Tensor | None = None) -> torch.Tensor:
        """[N, V of this rank] of rows x [N, d], in the accumulation dtype.

        Args:
            norm: weight of another final norm (the draft's), None for the model's own.
        """
        ops, eps = self._runtime.ops, self._runtime.config.norm_eps
        normed = ops.rms_norm(x, self._weights.norm if norm is None else norm, eps)
        logits: torch.Tensor = ops.linear_bf16(normed, self._weights.head, "accumulate")
        return logits

    def all_logits(self, local: torch.Tensor) -> torch.Tensor:
        """[N, V] of all ranks' parts; one collective where the vocabulary is sharded."""
        if self._vocab_span is None:
            return local
        return torch.cat(self._runtime.group.gather(local, "logits"), dim=1)

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T, d] in the activation dtype; a sharded table sums one-hot rows, which is exact."""
        table = self._weights.embed
        if self._vocab_span is None:
            return table[token_ids].to(self._runtime.activation)
        first, last = self._vocab_span
        local = token_ids - first
        inside = (local >= 0) & (local < last - first)
        rows = table[torch.where(inside, local, 0)].masked_fill(~inside.unsqueeze(1), 0)
        return self._runtime.group.sum(rows, "embed").to(self._runtime.activation)
