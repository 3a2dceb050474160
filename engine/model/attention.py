"""Attention of one layer: window, selected entries, grouped output projection (model.md §2.4)."""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.config.model import LayerRole
from engine.model.attend import attend
from engine.model.base import Runtime
from engine.model.compressor import Compressor
from engine.model.context import StepContext
from engine.model.indexer import Indexer
from engine.weights.tensors import AttentionWeights

__all__ = ["Attention", "OutputProjection"]


class Attention:
    """One layer's attention on this rank's heads.

    Legend: T rows, H heads of this rank, D head dim, W window.
    """

    def __init__(self, runtime: Runtime, role: LayerRole, weights: AttentionWeights) -> None:
        self._runtime = runtime
        self._role = role
        self._weights = weights
        self._table = "compress" if role.ratio else "main"
        self._compressor = (
            Compressor(runtime, role, weights.compressor) if weights.compressor else None
        )
        self._indexer = Indexer(runtime, role, weights.indexer) if weights.indexer else None
        self._output = OutputProjection(runtime, role, weights)

    def begin(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """What `finish` sums over ranks, of x [T, d]; caches of this layer are written.

        No exchange: a compiled region may hold this.
        """
        ops, state, inputs = self._runtime.ops, step.state, step.inputs
        rotation = step.rotations[self._table]
        qr, q_THD, kv_TD = self._project(x, step)
        if self._compressor is not None:
            self._compressor.run(x, step)
        if self._indexer is not None:
            self._indexer.run(x, qr, step)
        ring = state.rings[self._role.layer_id]
        rows = step.selection.buffers[self._role.kv_owner].with_window(
            ring[inputs.ring_rows], kv_TD
        )
        indices = step.selection.indices if self._role.ratio else inputs.window_indices
        assert indices is not None, "an index source precedes every layer with a ratio"
        scale = self._runtime.config.head_dim**-0.5
        o_THD = attend(ops, step, q_THD, rows, indices, self._weights.sink, scale)
        # Written after attention: the ring's old rows are still in the window of early rows.
        ring[inputs.ring_targets] = kv_TD[inputs.ring_sources]
        o_THD = ops.rope(o_THD, rotation.cos, rotation.minus_sin)
        return self._output.begin(o_THD)

    def finish(self, partial: torch.Tensor) -> torch.Tensor:
        """Output [T, d] of what `begin` gave, summed over ranks and rounded once."""
        return self._output.finish(partial)

    def _project(
        self, x: torch.Tensor, step: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query latent [T, q_lora], queries [T, H, D] and window rows [T, D]."""
        runtime, weights = self._runtime, self._weights
        config, ops = runtime.config, runtime.ops
        rotation = step.rotations[self._table]
        joined = ops.linear_fp8(x, weights.wq_a_wkv, "activation")
        latent, kv = joined.split([config.q_lora_rank, config.head_dim], dim=1)
        qr = ops.rms_norm(latent, weights.q_norm, config.norm_eps)
        q = ops.linear_fp8(qr, weights.wq_b, "activation").view(x.shape[0], -1, config.head_dim)
        q = ops.rope(q, rotation.cos, rotation.sin)
        kv = ops.rms_norm(kv, weights.kv_norm, config.norm_eps)
        kv = ops.rope(kv, rotation.cos, rotation.sin)
        return qr, q, runtime.on_fp8_grid(kv)


class OutputProjection:
    """wo_a by group, then wo_b; summed over ranks.

    Where ranks hold parts of a group and the mode rounds the group's output, the partial sums
    are exchanged first (one more collective), and each rank takes a share of wo_b's columns.
    """

    def __init__(self, runtime: Runtime, role: LayerRole, weights: AttentionWeights) -> None:
        self._runtime = runtime
        self._weights = weights
        self._layer = role.layer_id
        self._heads = runtime.layout.head_layout

    def begin(self, o_THD: torch.Tensor) -> torch.Tensor:
        """Partial sums [T, d] of this rank's heads o [T, H, D].

        Where ranks exchange groups first, the group outputs [T, G, L].
        """
        runtime, heads, weights = self._runtime, self._heads, self._weights
        if heads.pad_before or heads.pad_after:
            o_THD = functional.pad(o_THD, (0, 0, heads.pad_before, heads.pad_after))
        u_TGL: torch.Tensor = runtime.ops.output_projection(o_THD, weights.wo_a, heads.num_groups)
        if heads.exchanges_groups:
            return u_TGL
        return self._projected(u_TGL.reshape(o_THD.shape[0], -1))

    def finish(self, partial: torch.Tensor) -> torch.Tensor:
        """[T, d] of what `begin` gave, summed over ranks and rounded."""
        runtime = self._runtime
        if self._heads.exchanges_groups:
            partial = self._projected(self._exchanged(partial))
        total = runtime.group.sum(partial, f"attention.{self._layer}")
        return runtime.as_activation(total)

    def _projected(self, columns: torch.Tensor) -> torch.Tensor:
        """wo_b of this rank's columns [T, C], a partial sum [T, d]."""
        runtime, weights = self._runtime, self._weights
        if weights.wo_b is None:
            width = runtime.config.hidden_size
            return columns.new_zeros(columns.shape[0], width, dtype=runtime.accumulate)
        complete = runtime.as_activation(columns)
        partial: torch.Tensor = runtime.ops.linear_fp8(complete, weights.wo_b, "accumulate")
        return partial

    def _exchanged(self, u_TGL: torch.Tensor) -> torch.Tensor:
        """This rank's columns of the complete group outputs [T, columns]."""
        layout, width = self._runtime.layout, self._runtime.config.o_lora_rank
        num_slots = self._group_slots()
        padded = functional.pad(u_TGL, (0, 0, 0, num_slots - u_TGL.shape[1]))
        parts = self._runtime.group.gather(padded, f"groups.{self._layer}")
        first, last = layout.output_groups()
        complete = []
        for group in range(first, last):
            total: torch.Tensor | None = None
            for rank in layout.ranks_of_group(group):
                slot = group - self._first_group(rank)
                part = parts[rank][:, slot]
                total = part if total is None else total + part
            assert total is not None
            complete.append(total)
        if not complete:
            return u_TGL.new_zeros(u_TGL.shape[0], 0)
        span = self._heads.output_columns
        joined = torch.cat(complete, dim=1)
        return joined[:, span[0] - first * width : span[1] - first * width]

    def _first_group(self, rank: int) -> int:
        config, size = self._runtime.config, self._runtime.layout.size
        return rank * (config.num_heads // size) // config.heads_per_group

    def _group_slots(self) -> int:
        """Groups a rank touches at most: the same payload shape on every rank."""
        config, size = self._runtime.config, self._runtime.layout.size
        per_rank = config.num_heads // size
        touched = [
            -(-(rank + 1) * per_rank // config.heads_per_group)
            - rank * per_rank // config.heads_per_group
            for rank in range(size)
        ]
        return max(touched)
