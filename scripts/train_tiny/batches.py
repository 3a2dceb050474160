"""Batches of tasks as tensors; each depends on the seed and its step alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scripts.train_tiny.attention import Pathways
from scripts.train_tiny.schedule import Phase
from tiny_checkpoints.recall_tasks import FAMILIES, Task, draw_task

__all__ = ["Batch", "draw_batch"]


@dataclass(frozen=True)
class Batch:
    """Sequences of S + 1 tokens.

    Attributes:
        ids: [B, S + 1].
        is_answer: [B, S], whether the token after a position is an answer.
        weights: [B, S] of the answers in the loss: a sequence counts by the root of its answers.
        rounds_activations: whether the forward rounds as in `quantised`.
    """

    tasks: list[Task]
    ids: Tensor
    is_answer: Tensor
    weights: Tensor
    pathways: Pathways
    rounds_activations: bool


def draw_batch(phase: Phase, size: int, seed: int, step: int) -> Batch:
    """The batch of one step."""
    rng = np.random.default_rng([seed, step])
    names = list(phase.families)
    odds = np.array([phase.families[name] for name in names])
    chosen = rng.choice(len(names), size, p=odds / odds.sum())
    tasks = [draw_task(FAMILIES[names[one]], phase.length + 1, rng) for one in chosen]
    is_answer = torch.zeros(size, phase.length, dtype=torch.bool)
    for row, task in enumerate(tasks):
        is_answer[row, [at - 1 for at in task.answers]] = True
    count = is_answer.sum(1, keepdim=True).clamp(min=1)
    ratios = torch.tensor([FAMILIES[task.family].ratio for task in tasks])
    is_open = bool(rng.random() < phase.open_share)
    allowed = {} if is_open else {ratio: ratios == ratio for ratio in (1, 2)}
    return Batch(
        tasks,
        torch.tensor([task.ids for task in tasks]),
        is_answer,
        is_answer / count.sqrt(),
        Pathways(allowed, selects=bool(rng.random() < phase.select_share)),
        bool(rng.random() < phase.round_share),
    )
