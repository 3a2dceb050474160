"""Index tensors of a draft proposal: every row sees its whole block and the committed window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.state import CacheGeometry
from engine.cache.step_inputs import StepInputs
from engine.schedule.plan import DraftPlan, DraftSequence

__all__ = ["build_draft_inputs"]

Ids = npt.NDArray[np.int64]


def build_draft_inputs(
    plan: DraftPlan,
    geometry: CacheGeometry,
    block_size: int,
    noise_token_id: int,
    device: torch.device,
) -> StepInputs:
    """Indices of one proposal: `block_size` rows a sequence, positions after its last.

    The layout is that of engine.cache.step_inputs; nothing is written to the rings, because a
    block's rows are not committed. Blocks beyond the plan's sequences are padding.
    """
    num_padding = max(0, plan.padded_sequences - len(plan.sequences))
    sequences = (*plan.sequences, *[DraftSequence(slot=0, position=0, token=0)] * num_padding)
    num_sequences = len(sequences)
    num_rows = num_sequences * block_size
    last = np.array([sequence.position for sequence in sequences], dtype=np.int64)
    slots = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
    positions = last[:, None] + 1 + np.arange(block_size)
    token_ids = np.full((num_sequences, block_size), noise_token_id, dtype=np.int64)
    token_ids[:, 0] = [sequence.token for sequence in sequences]

    def to_device(values: Ids) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    none = torch.zeros(0, dtype=torch.int64, device=device)
    ring_rows = slots[:, None] * geometry.ring + np.arange(geometry.ring)
    return StepInputs(
        num_rows=len(plan.sequences) * block_size,
        padded_rows=num_rows,
        num_sequences=num_sequences,
        token_ids=to_device(token_ids.ravel()),
        positions=to_device(positions.ravel()),
        is_real=torch.arange(num_rows, device=device) < len(plan.sequences) * block_size,
        window_indices=to_device(_indices(last, geometry, block_size)),
        ring_rows=to_device(ring_rows.ravel()),
        ring_sources=none,
        ring_targets=none,
        row_spans=(),
        row_sequences=None,
        by_ratio={},
        engram_rows=None,
        logits_rows=torch.arange(num_rows, device=device),
    )


def _indices(last: Ids, geometry: CacheGeometry, block_size: int) -> Ids:
    """[T, W + block] buffer rows: positions p-W+1..p of the ring, then the block's own rows."""
    num_sequences = len(last)
    sequence = np.arange(num_sequences)[:, None]
    context = last[:, None] + np.arange(1 - geometry.window, 1)
    in_ring = np.where(context < 0, -1, sequence * geometry.ring + context % geometry.ring)
    own_first = num_sequences * geometry.ring + sequence * block_size
    block = own_first + np.arange(block_size)
    return np.repeat(np.concatenate([in_ring, block], axis=1), block_size, axis=0)
