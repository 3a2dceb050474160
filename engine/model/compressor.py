"""Compressed KV entries and index keys of a kv source (model.md §2.5, §2.6)."""

from __future__ import annotations

import torch

from engine.config.model import LayerRole
from engine.model.base import Runtime
from engine.model.context import StepContext
from engine.weights.tensors import CompressorWeights

__all__ = ["Compressor"]


class Compressor:
    """Turns the layer's input into entries, writes them and publishes the owner's scope.

    Legend: T rows, G groups completed (padded), D head dim.
    """

    def __init__(self, runtime: Runtime, role: LayerRole, weights: CompressorWeights) -> None:
        self._runtime = runtime
        self._weights = weights
        self._layer = role.layer_id
        self._ratio = role.ratio

    def run(self, x: torch.Tensor, step: StepContext) -> None:
        """Append the entries that x [T, d] completes; publish always, also when none is new."""
        runtime, weights, state = self._runtime, self._weights, step.state
        eps = runtime.config.norm_eps
        ratio_inputs = step.ratio(self._ratio)
        rotation = step.entry_rotations[self._ratio]
        pooled_GD = self._pooled(x, step)
        latent_GD = runtime.ops.rms_norm(pooled_GD, weights.norm, eps)
        keys = runtime.ops.linear_bf16(latent_GD, weights.index_wk, "activation")
        keys = runtime.ops.rms_norm(keys, weights.index_k_norm, eps)
        keys = runtime.ops.rope(keys, rotation.cos, rotation.sin)
        entries = runtime.ops.rope(latent_GD, rotation.cos, rotation.sin)
        rows = ratio_inputs.entry_rows
        state.index_keys[self._layer][rows] = runtime.on_fp4_grid(keys, 32)
        state.compressed[self._layer][rows] = runtime.on_fp4_grid(entries, 16)
        scope = state.compressed[self._layer][ratio_inputs.scope_rows]
        step.selection.buffers[self._layer] = step.new_buffer(scope)
        step.selection.index_keys = state.index_keys[self._layer][ratio_inputs.scope_rows]

    def _pooled(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """[G, D] before the norm."""
        ops, weights = self._runtime.ops, self._weights
        if weights.wgate is None:
            latent: torch.Tensor = ops.linear_bf16(x, weights.wkv, "activation")
            return latent
        kv_TD = ops.linear_bf16(x, weights.wkv, "accumulate")
        gate_TD = ops.linear_bf16(x, weights.wgate, "accumulate")
        raw = torch.cat([kv_TD, gate_TD], dim=1)
        ratio_inputs = step.ratio(self._ratio)
        tails = step.state.tails[self._layer]
        members = torch.cat([tails, raw])[ratio_inputs.group_sources]
        tails[ratio_inputs.tail_rows] = raw[ratio_inputs.tail_sources]
        kv, gate = members.chunk(2, dim=1)
        pooled: torch.Tensor = ops.compress_pool(kv, gate, self._ratio)
        return pooled
