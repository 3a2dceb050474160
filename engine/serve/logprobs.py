"""Log-probabilities of tokens and of the best alternatives, row by row as steps deliver them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LogprobRecorder", "TokenLogprob"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's natural log-probability under the model, and the best alternatives.

    Attributes:
        top: (id, logprob), best first, lowest id on ties.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class LogprobRecorder:
    """Takes logits rows as they come; a row is scored once the token that follows is known.

    Args:
        num_top: alternatives kept per token.
        expected: tokens known beforehand, in row order: a prompt's, its first one left out.
    """

    def __init__(self, num_top: int, expected: Sequence[int] = ()) -> None:
        self._num_top = num_top
        self._expected = tuple(expected)
        self._num_expected_seen = 0
        self._rows: list[npt.NDArray[np.float64]] = []
        self.prompt: list[TokenLogprob] = []

    def take(self, logits: npt.NDArray[np.floating]) -> None:
        """Rows [N, V] of one step."""
        for row in logits:
            scored = _log_softmax(row)
            if self._num_expected_seen < len(self._expected):
                token = self._expected[self._num_expected_seen]
                self.prompt.append(self._entry(scored, token))
                self._num_expected_seen += 1
            else:
                self._rows.append(scored)

    def follow(self, token_ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """Score the waiting rows with the tokens that came of them; surplus rows are dropped."""
        rows, self._rows = self._rows, []
        return tuple(self._entry(row, token) for row, token in zip(rows, token_ids, strict=False))

    def _entry(self, scored: npt.NDArray[np.float64], token: int) -> TokenLogprob:
        order = np.argsort(-scored, kind="stable")[: self._num_top]
        top = tuple((int(index), float(scored[index])) for index in order)
        return TokenLogprob(token, float(scored[token]), top)


def _log_softmax(row: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    shifted = row.astype(np.float64) - float(np.max(row))
    scored: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return scored
