"""Picking one request's tokens on the host: sampling, and verifying sampled drafts.

Randomness is counted, not streamed: each number follows from the seed, what it is for and the
place of its token. A request says the same whoever shares its steps, and also after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.schedule.distribution import Candidates, Distribution, SamplingRule

__all__ = ["DraftChoice", "TokenChooser"]

_CHOOSE, _ACCEPT, _DRAFT = range(3)
# Behind the op table; a wider choice is made from whole rows.
_MOST_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """How a sequence's drafts are drawn, and a point of [0, 1) for each place of the block."""

    rule: SamplingRule
    points: tuple[float, ...]


class TokenChooser:
    """Temperature, top-k, top-p, seed; no end token before `min_tokens`.

    Args:
        eos_token_id: masked until min_tokens are out.
    """

    def __init__(self, rule: SamplingRule, eos_token_id: int) -> None:
        self._rule = rule
        self._eos_token_id = eos_token_id
        self._num_chosen = 0

    @property
    def num_candidates(self) -> int:
        """Best tokens of a row that are enough to choose from; 0: whole rows are needed."""
        kept = 1 if self._rule.temperature == 0 else self._rule.top_k
        # One more, since the end token may be among them and not be allowed.
        count = kept + (self._rule.min_tokens > 0)
        return count if kept and count <= _MOST_CANDIDATES else 0

    def choose(
        self,
        rows: Sequence[Candidates],
        drafts: Sequence[int] = (),
        proposals: Sequence[Distribution] = (),
    ) -> tuple[int, ...]:
        """The next tokens: drafts as long as they are accepted, and one of the target's own.

        A draft drawn from p_d is accepted with probability min(1, p_t / p_d); the first that is
        not is replaced by a draw from the normalised max(p_t - p_d, 0). The tokens then follow
        the target's own distribution (model.md §2.10).

        Args:
            rows: of the target, after the last known token and after each draft.
            proposals: what each draft was drawn from.
        """
        chosen: list[int] = []
        for row, draft, proposal in zip(rows, drafts, proposals, strict=False):
            target = self._target(row)
            token = np.array([draft])
            accepted = target.at(token)[0] / proposal.at(token)[0]
            if self._point(_ACCEPT) < accepted:
                chosen.append(self._taken(draft))
                continue
            chosen.append(self._taken(target.beyond(proposal).draw(self._point(_CHOOSE))))
            return tuple(chosen)
        last = self._target(rows[len(chosen)]).draw(self._point(_CHOOSE))
        return (*chosen, self._taken(last))

    def draft_choice(self, block_size: int) -> DraftChoice:
        """How the drafts of the next places are drawn."""
        points = tuple(self._point(_DRAFT, ahead) for ahead in range(block_size))
        return DraftChoice(self._rule, points)

    def _target(self, row: Candidates) -> Distribution:
        if self._num_chosen < self._rule.min_tokens:
            row = row.without(self._eos_token_id)
        return Distribution.of(row, self._rule)

    def _taken(self, token: int) -> int:
        self._num_chosen += 1
        return token

    def _point(self, purpose: int, ahead: int = 0) -> float:
        counter = (0, purpose, self._num_chosen + ahead, 0)
        bits = np.random.Philox(key=self._rule.seed, counter=counter)
        return float(np.random.Generator(bits).random())
