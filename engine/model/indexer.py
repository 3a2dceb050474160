"""Which compressed entries each row attends to (model.md §2.6, §2.7)."""

from __future__ import annotations

import torch

from engine.config.model import LayerRole
from engine.model.base import Runtime
from engine.model.context import StepContext
from engine.weights.tensors import IndexerWeights

__all__ = ["Indexer"]


class Indexer:
    """Scores the owner's keys and publishes the selection. Replicated on every rank.

    Legend: T rows, h index heads, x index head dim, M selected entries.
    """

    def __init__(self, runtime: Runtime, role: LayerRole, weights: IndexerWeights) -> None:
        self._runtime = runtime
        self._role = role
        self._weights = weights
        index = runtime.config.index
        self._head_scale = index.head_dim**-0.5 * index.num_heads**-0.5

    def run(self, x: torch.Tensor, qr: torch.Tensor, step: StepContext) -> None:
        """Select for every row of x [T, d], whose query latent is qr [T, q_lora]."""
        index, ops = self._runtime.config.index, self._runtime.ops
        ratio_inputs = step.ratio(self._role.ratio)
        scores = self._scores(x, qr, step)
        selection = step.selection
        if self._role.publishes_candidates:
            selection.candidates = ops.candidate_blocks(
                scores,
                ratio_inputs.num_visible,
                index.candidate_block_size,
                index.candidate_blocks,
            )
        candidates = selection.candidates if self._role.uses_candidates else None
        entries_TM = ops.topk_positions(scores, ratio_inputs.num_visible, index.top_k, candidates)
        rows_TM = torch.where(entries_TM < 0, -1, entries_TM + ratio_inputs.scope_offset)
        selection.indices = torch.cat([step.inputs.window_indices, rows_TM], dim=1)

    def _scores(self, x: torch.Tensor, qr: torch.Tensor, step: StepContext) -> torch.Tensor:
        """[T, scope], each row against its own sequence's keys."""
        runtime, weights = self._runtime, self._weights
        index, ops = runtime.config.index, runtime.ops
        rotation = step.rotations["compress"]
        q = ops.linear_fp8(qr, weights.wq_b, "activation")
        q = q.view(-1, index.num_heads, index.head_dim)
        q = ops.rope(q, rotation.cos, rotation.sin).reshape(-1, index.head_dim)
        q_Thx = runtime.on_fp4_grid(q, 32).view(-1, index.num_heads, index.head_dim)
        projected = ops.linear_bf16(x, weights.weights_proj, "activation")
        weights_Th = projected.to(runtime.accumulate) * self._head_scale
        keys = step.selection.index_keys
        assert keys is not None, "an index source follows its kv source"
        if step.inputs.num_sequences == 1:
            scores: torch.Tensor = ops.index_scores(q_Thx, keys, weights_Th)
            return scores
        return self._ragged_scores(q_Thx, keys, weights_Th, step)

    def _ragged_scores(
        self, q_Thx: torch.Tensor, keys: torch.Tensor, weights_Th: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        scope = step.ratio(self._role.ratio).scope
        scores = weights_Th.new_zeros(q_Thx.shape[0], scope)
        for sequence, (first, last) in enumerate(step.inputs.row_spans):
            own_keys = keys[sequence * scope : (sequence + 1) * scope]
            scores[first:last] = self._runtime.ops.index_scores(
                q_Thx[first:last], own_keys, weights_Th[first:last]
            )
        return scores
