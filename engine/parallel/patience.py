"""How long a rank that does not come is waited for, and longer while it compiles."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["COMPILE_LIMIT_S", "Patience"]

COMPILE_LIMIT_S = 1800.0  # of one graph, after which a rank counts as silent


class Patience:
    """A limit that begins anew as long as one of those that are waited for compiles.

    Args:
        limit_s: without a sign of anybody's compiling.
        compiles: whether one of them compiles a graph, for no longer than COMPILE_LIMIT_S.
    """

    def __init__(self, limit_s: float, compiles: Callable[[], bool]) -> None:
        self._limit_s = limit_s
        self._compiles = compiles
        self._since_s = time.monotonic()

    def left_s(self) -> float:
        """Seconds that are left by now; 0 when it is over. To be asked now and then."""
        now_s = time.monotonic()
        if self._compiles():
            self._since_s = now_s
        return max(0.0, self._since_s + self._limit_s - now_s)
