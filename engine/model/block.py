"""One block with shifted hyper-connections (model.md §2.3) and its engram (§2.9)."""

from __future__ import annotations

from typing import Any

import torch

from engine.config.model import LayerRole
from engine.graphs.region_times import RegionTimes, kind_of_layer
from engine.model.attention import Attention
from engine.model.base import Runtime
from engine.model.context import StepContext
from engine.model.moe import ExpertShape, Moe
from engine.weights.tensors import BlockWeights, EngramWeights, HyperWeights

__all__ = ["Block", "Engram", "Mixes", "hyper_mixes"]

Mixes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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


class Block:
    """Attention and experts around the residual streams [T, m, d].

    `run` takes and returns the `pre` [T, m] that the next sublayer collapses with.
    """

    def __init__(
        self, runtime: Runtime, role: LayerRole, experts: ExpertShape, weights: BlockWeights
    ) -> None:
        self._runtime = runtime
        self._role = role
        self._weights = weights
        self._attention = Attention(runtime, role, weights.attention)
        self._moe = Moe(runtime, role.layer_id, experts, weights.moe)
        self._engram = Engram(runtime, role, weights.engram) if weights.engram else None

    def time_regions(self, times: RegionTimes) -> None:
        """Time this layer and its parts from now on."""
        kind = kind_of_layer(self._role)
        self.run = times.timed(kind, "", self.run)  # type: ignore[method-assign]
        for name, part in self._parts():
            part.run = times.timed(kind, name, part.run)

    def _parts(self) -> list[tuple[str, Any]]:
        """Sub-regions by name; each has a `run`."""
        parts = [("engram", self._engram), ("attention", self._attention), ("experts", self._moe)]
        return [(name, part) for name, part in parts if part is not None]

    def run(
        self, streams: torch.Tensor, pre: torch.Tensor, step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """New streams and pre."""
        ops, weights, eps = self._runtime.ops, self._weights, self._runtime.config.norm_eps
        if self._engram is not None:
            streams = self._engram.run(streams, step)
        if self._role.is_tap:
            mean = streams.to(self._runtime.accumulate).mean(dim=1)
            step.taps.append(self._runtime.as_activation(mean))
        attn_pre, post, comb = hyper_mixes(self._runtime, streams, weights.hc_attn)
        x = ops.rms_norm(ops.hc_collapse(streams, pre), weights.attn_norm, eps)
        streams = ops.hc_expand(self._attention.run(x, step), streams, post, comb)
        ffn_pre, post, comb = hyper_mixes(self._runtime, streams, weights.hc_ffn)
        x = ops.rms_norm(ops.hc_collapse(streams, attn_pre), weights.ffn_norm, eps)
        streams = ops.hc_expand(self._moe.run(x, step.inputs.is_real), streams, post, comb)
        return streams, ffn_pre


class Engram:
    """Adds gated n-gram memory to the streams; its rows depend on token ids alone."""

    def __init__(self, runtime: Runtime, role: LayerRole, weights: EngramWeights) -> None:
        assert role.engram_index is not None
        self._runtime = runtime
        self._index = role.engram_index
        self._weights = weights

    def run(self, streams: torch.Tensor, step: StepContext) -> torch.Tensor:
        """New streams [T, m, d]."""
        ops, weights, config = self._runtime.ops, self._weights, self._runtime.config
        assert step.inputs.engram_rows is not None
        e = ops.engram_lookup(weights.table, step.inputs.engram_rows[self._index])
        kv = ops.linear_fp8(e, weights.wkv, "activation")
        key_width = config.hc_mult * config.hidden_size
        key, value = kv.split([key_width, config.hidden_size], dim=1)
        out: torch.Tensor = ops.engram_gate(
            streams,
            key.view(-1, config.hc_mult, config.hidden_size),
            value,
            weights.q_weight,
            weights.k_weight,
            config.norm_eps,
        )
        return out
