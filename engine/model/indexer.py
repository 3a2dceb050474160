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

    Legend: T rows, B sequences, n entries of a sequence's scope, h index heads, x index head dim,
    M selected entries.
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
        if step.inputs.row_sequences is None:
            return self._scores_by_span(q_Thx, keys, weights_Th, step)
        keys_Bnx = keys.view(step.inputs.num_sequences, -1, keys.shape[1])
        if q_Thx.shape[0] <= step.inputs.num_sequences:
            return self._scores_by_row(q_Thx, keys_Bnx, weights_Th, step.inputs.row_sequences)
        return self._scores_of_all(q_Thx, keys_Bnx, weights_Th, step.inputs.row_sequences)

    def _scores_by_row(
        self,
        q_Thx: torch.Tensor,
        keys_Bnx: torch.Tensor,
        weights_Th: torch.Tensor,
        row_sequences: torch.Tensor,
    ) -> torch.Tensor:
        """Rows are few, as in decode steps: each fetches the keys of its sequence."""
        own_keys_Tnx = keys_Bnx[row_sequences]
        score = self._runtime.ops.index_scores
        return torch.cat(
            [
                score(q_Thx[row : row + 1], own_keys_nx, weights_Th[row : row + 1])
                for row, own_keys_nx in enumerate(own_keys_Tnx)
            ]
        )

    def _scores_of_all(
        self,
        q_Thx: torch.Tensor,
        keys_Bnx: torch.Tensor,
        weights_Th: torch.Tensor,
        row_sequences: torch.Tensor,
    ) -> torch.Tensor:
        """Rows are many: all sequences' keys are scored, and the row's own scores picked.

        What a row scores of another sequence, were it NaN, meets nothing of its own.
        """
        num_rows, num_sequences = q_Thx.shape[0], keys_Bnx.shape[0]
        scores = self._runtime.ops.index_scores(q_Thx, keys_Bnx.flatten(0, 1), weights_Th)
        scores_TBn = scores.view(num_rows, num_sequences, -1)
        own: torch.Tensor = scores_TBn[
            torch.arange(num_rows, device=row_sequences.device), row_sequences
        ]
        return own

    def _scores_by_span(
        self, q_Thx: torch.Tensor, keys: torch.Tensor, weights_Th: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        """Eager steps know on the host whose rows are whose: nothing is scored for nobody."""
        scope = step.ratio(self._role.ratio).scope
        scores = weights_Th.new_zeros(q_Thx.shape[0], scope)
        for sequence, (first, last) in enumerate(step.inputs.row_spans):
            own_keys = keys[sequence * scope : (sequence + 1) * scope]
            scores[first:last] = self._runtime.ops.index_scores(
                q_Thx[first:last], own_keys, weights_Th[first:last]
            )
        return scores
