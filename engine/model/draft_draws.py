"""Which drafts a block proposes: the greedy ones, or drawn as their request's rule says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.model.transformer import Transformer
from engine.sampler import Greedy
from engine.schedule.choice import DraftChoice
from engine.schedule.distribution import Candidates, Distribution

__all__ = ["DraftDraws"]


class DraftDraws:
    """Picks place after place of one proposal; every rank picks the same.

    Args:
        choices: of each sequence, None where its drafts are greedy; further ones are padding.

    Attributes:
        distributions: by sequence, what each of its drafts was drawn from; empty where greedy.
    """

    def __init__(
        self, target: Transformer, sampler: Greedy, choices: Sequence[DraftChoice | None]
    ) -> None:
        self._target = target
        self._sampler = sampler
        self._choices = choices
        self._are_greedy = all(choice is None for choice in choices)
        self.distributions: tuple[list[Distribution], ...] = tuple([] for _ in choices)

    def pick(self, local: torch.Tensor, place: int) -> torch.Tensor:
        """Drafts [S] of one place from this rank's logits [S, V/ranks].

        One collective where the vocabulary is sharded.
        """
        if self._are_greedy:
            return self._sampler.stage(local)
        logits = self._target.all_logits(local)
        ids = list(self._sampler.from_logits(logits))
        rows = logits.cpu().numpy()
        for sequence, choice in enumerate(self._choices):
            if choice is not None:
                drawn_from = Distribution.of(Candidates.of_row(rows[sequence]), choice.rule)
                self.distributions[sequence].append(drawn_from)
                ids[sequence] = drawn_from.draw(choice.points[place])
        return torch.tensor(ids, dtype=torch.int64, device=local.device)
