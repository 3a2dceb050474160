"""Picking a token from a row of logits on the host; followers never see this."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.serve.requests import Sampling

__all__ = ["TokenChooser"]


class TokenChooser:
    """Temperature, top-k and top-p for one sequence, seeded; no end token before `min_tokens`.

    Args:
        seed: of this sequence's own stream.
        eos_token_id: masked until min_tokens are out.
    """

    def __init__(self, sampling: Sampling, seed: int, eos_token_id: int) -> None:
        self._sampling = sampling
        self._eos_token_id = eos_token_id
        self._num_chosen = 0
        self._random = np.random.default_rng(seed)

    @staticmethod
    def is_needed(sampling: Sampling) -> bool:
        """Whether anything else than the ranks' own greedy choice is asked for."""
        return sampling.temperature > 0 or (sampling.min_tokens > 0 and not sampling.ignore_eos)

    def __call__(self, logits: npt.NDArray[np.floating]) -> int:
        """The next token's id, from logits [V]."""
        row = np.array(logits, dtype=np.float64)
        if self._num_chosen < self._sampling.min_tokens:
            row[self._eos_token_id] = -np.inf
        self._num_chosen += 1
        if self._sampling.temperature == 0:
            return int(np.argmax(row))
        return self._draw(row / self._sampling.temperature)

    def _draw(self, row: npt.NDArray[np.float64]) -> int:
        # Stable: of equal logits the lower id is kept first.
        order = np.argsort(-row, kind="stable")
        if self._sampling.top_k:
            order = order[: self._sampling.top_k]
        weights = np.exp(row[order] - row[order[0]])
        cumulative = np.cumsum(weights / weights.sum())
        # The smallest set whose mass reaches top_p, never empty.
        kept = int(np.searchsorted(cumulative, self._sampling.top_p, side="left")) + 1
        cumulative = cumulative[:kept]
        point = self._random.random() * cumulative[-1]
        place = int(np.searchsorted(cumulative, point, side="right"))
        return int(order[min(place, len(cumulative) - 1)])
