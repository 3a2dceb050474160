"""From a step's output to the tokens of one request: greedy ids, or what its chooser picks."""

from __future__ import annotations

import numpy as np

from engine.outputs import StepOutput
from engine.schedule.distribution import Candidates
from engine.schedule.request import Request
from engine.schedule.speculation import num_accepted

__all__ = ["chosen_tokens", "num_top", "wants_logits"]


def wants_logits(request: Request) -> bool:
    """Whether whole rows must reach the host: they are asked for, or all tokens may be drawn."""
    return request.want_logits or (request.chooser is not None and num_top(request) == 0)


def num_top(request: Request) -> int:
    """Best tokens of each row that its chooser needs; 0: none, or all."""
    return 0 if request.chooser is None else request.chooser.num_candidates


def chosen_tokens(request: Request, output: StepOutput, rows: slice) -> tuple[int, ...]:
    """Accepted drafts and one token more, from the last rows of `rows`."""
    rows = slice(rows.stop - len(request.drafts) - 1, rows.stop)
    greedy = output.token_ids[rows]
    if request.chooser is None:
        return greedy[: num_accepted(request.drafts, greedy) + 1]
    if not all(output.is_finite[rows]):
        # Nothing can be drawn from such a row: the request is going to fail, by its position.
        return greedy[:1]
    candidates = [
        _candidates(output, row, num_top(request)) for row in range(rows.start, rows.stop)
    ]
    return request.chooser.choose(candidates, request.drafts, request.proposals)


def _candidates(output: StepOutput, row: int, count: int) -> Candidates:
    if count:
        assert output.top is not None
        ids, logits = output.top
        return Candidates(ids[row, :count], logits[row, :count].astype(np.float64))
    assert output.logits is not None
    return Candidates.of_row(output.logits[row])
