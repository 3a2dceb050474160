"""Engram of a layer: gated n-gram memory added to the streams (model.md §2.9)."""

from __future__ import annotations

import torch

from engine.config.model import LayerRole
from engine.model.base import Runtime
from engine.model.context import StepContext
from engine.weights.tensors import EngramWeights

__all__ = ["Engram"]


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
