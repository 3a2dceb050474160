"""Intervals against published ranks and an exact count of all outcomes."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from reports.interval import interval_of


@pytest.mark.parametrize(
    ("count", "rank"),
    # Conover, Practical Nonparametric Statistics: ranks of the 95 % interval of a median.
    [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (50, 18), (100, 40)],
)
def test_ranks_are_the_published_ones(count: int, rank: int) -> None:
    interval = interval_of([float(value) for value in range(1, count + 1)])
    assert interval is not None
    assert (interval.low, interval.high) == (rank, count + 1 - rank)
    assert interval.is_confidence


def test_the_coverage_is_exactly_what_all_outcomes_give() -> None:
    # Each of nine samples lies below or above the median with probability 1/2; the interval
    # [x_2, x_8] misses it when fewer than two lie on one side.
    count, covered = 9, 0
    for outcome in product((0, 1), repeat=count):
        covered += 2 <= sum(outcome) <= count - 2
    assert Fraction(covered, 2**count) > Fraction(95, 100)
    narrower = sum(3 <= sum(outcome) <= count - 3 for outcome in product((0, 1), repeat=count))
    assert Fraction(narrower, 2**count) < Fraction(95, 100)


def test_too_few_samples_give_their_range_under_its_own_name() -> None:
    interval = interval_of([3.0, 1.0, 2.0])
    assert interval is not None
    assert (interval.median, interval.low, interval.high, interval.count) == (2.0, 1.0, 3.0, 3)
    assert not interval.is_confidence
    assert interval.method == "range, n=3"


def test_nothing_measured_is_none() -> None:
    assert interval_of([]) is None
