"""The smallest shape at which a case still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from harness.core.case import Case

__all__ = ["shrunk"]

# Quantised axes hold whole blocks of 32: a search by ones would never meet a length that builds.
_STEPS = (32, 1)


def shrunk(case: Case, still_fails: Callable[[Case], bool], *, most_tries: int = 100) -> Case:
    """Make one axis after another shorter for as long as the failure stays.

    Each axis is bisected in steps of 32, then of 1, which finds the border of a failure that
    begins at some length; a failure at single lengths is shrunk as far as the bisection goes.

    Args:
        still_fails: whether a smaller case fails the same way; False where it cannot be built.
        most_tries: calls of `still_fails` at most.
    """
    search = _Search(still_fails, most_tries)
    smallest = case
    while True:
        before = smallest
        for name in case.axes:
            for step in _STEPS:
                smallest = search.shorten(smallest, name, step)
        if smallest == before:
            return smallest


@dataclass(slots=True)
class _Search:
    still_fails: Callable[[Case], bool]
    most_tries: int
    known: dict[str, bool] = field(default_factory=dict)

    def shorten(self, case: Case, name: str, step: int) -> Case:
        """The least multiple of `step` on this axis that fails, by bisection."""
        passes, fails = 0, -(-case.axes[name] // step)  # in steps; 0 is never tried
        best = case
        probe = 1  # most axes do not matter at all
        while passes + 1 < fails:
            smaller = replace(case, axes={**case.axes, name: probe * step})
            if self.fails(smaller):
                fails, best = probe, smaller
            else:
                passes = probe
            probe = (passes + fails) // 2
        return best

    def fails(self, case: Case) -> bool:
        """`still_fails`, asked once a case and no more once the tries are used up."""
        if case.case_id not in self.known:
            if len(self.known) >= self.most_tries:
                return False
            self.known[case.case_id] = self.still_fails(case)
        return self.known[case.case_id]
