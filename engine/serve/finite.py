"""Rows of logits that are no numbers give neither a token nor a log-probability.

The engine says at which position it met one; until it has, nothing may be computed from the row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.schedule.request import Request
from engine.serve.errors import ApiError

__all__ = ["nonfinite_error", "num_sound", "taking_finite"]

_Logits = npt.NDArray[np.floating]


def taking_finite(take: Callable[[_Logits], object]) -> Callable[[_Logits], None]:
    """`take`, spared rows [N, V] of which one is not finite: the request will fail."""

    def take_if_finite(rows: _Logits) -> None:
        if np.isfinite(rows).all():
            take(rows)

    return take_if_finite


def num_sound(request: Request) -> int:
    """How many of a request's tokens, its prompt included, came of logits that are numbers."""
    position = request.nonfinite_position
    return len(request.tokens) if position is None else min(len(request.tokens), position + 1)


def nonfinite_error(request: Request) -> ApiError | None:
    """A 500 that names the position, None where every logit was a number."""
    position = request.nonfinite_position
    if position is None:
        return None
    return ApiError(
        500,
        f"logits not finite at position {position}: the model computed no number there; "
        "`neuron-harness checkpoint verify` finds a damaged weight",
        code="nonfinite_logits",
    )
