"""A rank whose last hidden rows are off by one unit in the last place."""

from __future__ import annotations

from typing import Any

import torch

from engine.model.transformer import Transformer
from engine.parallel.rank_process import RankPipes, RankSpec, rank_main

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def one_ulp_off(rows: torch.Tensor) -> torch.Tensor:
    """[T, d], the fourth value of each row moved to the next of larger size."""
    moved = rows.clone()
    moved.view(_BITS[rows.element_size()])[:, 3] += 1
    return moved


def disturb(model: Transformer) -> None:
    """From now on in one rank of this process."""
    collapsed = model.collapsed
    model.collapsed = lambda residual: one_ulp_off(collapsed(residual))  # type: ignore[method-assign]


def drifting_main(spec: RankSpec, pipes: RankPipes, ring_buffer: Any) -> None:
    """Rank 1 as a process."""
    if spec.rank == 1:
        collapsed = Transformer.collapsed
        Transformer.collapsed = (  # type: ignore[method-assign]
            lambda self, residual: one_ulp_off(collapsed(self, residual))
        )
    rank_main(spec, pipes, ring_buffer)
