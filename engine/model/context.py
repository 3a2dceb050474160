"""What the layers of one step share: indices, rotations, buffers, the current selection."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.state import CacheState
from engine.cache.step_inputs import RatioInputs, StepInputs
from engine.model.rope_tables import Rotation

__all__ = ["AttentionBuffer", "Selection", "StepContext"]


class AttentionBuffer:
    """Rows that the layers of one kv owner attend to (layout: engine.cache.step_inputs).

    The compressed scope is filled once by the owner; each layer overwrites only its window part,
    so no layer copies the scope again.
    """

    def __init__(self, window_rows: int, ring_rows: int, scope: torch.Tensor) -> None:
        self._ring_rows = ring_rows
        self._window_rows = window_rows
        self.rows = scope.new_empty(window_rows + scope.shape[0], scope.shape[1])
        self.rows[window_rows:] = scope

    @classmethod
    def over(cls, rows: torch.Tensor, window_rows: int, ring_rows: int) -> AttentionBuffer:
        """A buffer whose rows are there already."""
        buffer = cls.__new__(cls)
        buffer.rows, buffer._window_rows, buffer._ring_rows = rows, window_rows, ring_rows
        return buffer

    def with_window(self, ring: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """All rows, with one layer's ring and the step's own rows in front."""
        self.rows[: self._ring_rows] = ring
        self.rows[self._ring_rows : self._window_rows] = own
        return self.rows


@dataclass(slots=True)
class Selection:
    """Handed down the stack within one step (model.md §2.12, SH).

    Attributes:
        buffers: by kv owner; None is the buffer of layers without a compressed cache.
        index_keys: [B*scope, x] of the current owner.
        indices: [T, W+M] buffer rows of window and selected entries.
        candidates: [T, scope] mask, once the candidate source has run.
        mask, mask_indices: in a prefill step, [T, N] of the buffer rows each token sees, and the
            indices it was made from.
    """

    buffers: dict[int | None, AttentionBuffer]
    index_keys: torch.Tensor | None = None
    indices: torch.Tensor | None = None
    candidates: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    mask_indices: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepContext:
    """Everything a layer needs beside its weights and its input."""

    inputs: StepInputs
    state: CacheState
    rotations: dict[str, Rotation]
    entry_rotations: dict[int, Rotation]
    selection: Selection
    taps: list[torch.Tensor]

    def ratio(self, ratio: int) -> RatioInputs:
        """Indices of a compress ratio."""
        return self.inputs.by_ratio[ratio]

    def new_buffer(self, scope: torch.Tensor) -> AttentionBuffer:
        """A buffer over a compressed scope [B*scope, D] (which may have no rows)."""
        num_ring_rows = self.inputs.ring_rows.shape[0]
        return AttentionBuffer(num_ring_rows + self.inputs.padded_rows, num_ring_rows, scope)
