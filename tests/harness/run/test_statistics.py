"""Statistics against brute force and published critical values."""

import itertools
import math
import random

import pytest

from harness.run.statistics import (
    effect_standard_error,
    hodges_lehmann,
    hodges_lehmann_shift,
    holm,
    mann_whitney_p,
    paired_lower_bound,
    paired_permutation_p,
    shift_lower_bound,
    shift_standard_error,
    sign_test_p,
)


def test_hodges_lehmann_is_the_median_of_walsh_averages():
    # averages of 1, 2, 6: 1, 1.5, 3.5, 2, 4, 6
    assert hodges_lehmann([1.0, 2.0, 6.0]) == 2.75
    # differences of (1, 2) and (4, 8): 3, 2, 7, 6
    assert hodges_lehmann_shift([1.0, 2.0], [4.0, 8.0]) == 4.5


def test_paired_bound_follows_wilcoxons_table():
    # n = 10, one-sided 5 %: T <= 10, so the 11th smallest Walsh average.
    differences = [0.1, 0.2, 0.35, 0.4, 0.55, 0.6, 0.75, 0.9, 1.3, 2.0]
    averages = sorted(
        (a + b) / 2 for a, b in itertools.combinations_with_replacement(differences, 2)
    )
    assert paired_lower_bound(differences) == pytest.approx(averages[10])
    # n = 5: only T = 0 (p = 1/32); n = 4 is too small for 95 %.
    assert paired_lower_bound([3.0, 1.0, 2.0, 5.0, 4.0]) == 1.0
    assert paired_lower_bound([3.0, 1.0, 2.0, 5.0]) is None


def test_unpaired_bound_follows_mann_whitneys_table():
    # n = m = 5, one-sided 5 %: U <= 4, so the 5th smallest difference.
    base, other = [1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.5, 14.0, 16.5, 19.0]
    shifts = sorted(b - a for a in base for b in other)
    assert shift_lower_bound(base, other) == pytest.approx(shifts[4])
    assert shift_lower_bound([1.0], [2.0]) is None


@pytest.mark.parametrize("num_pairs", [1, 2, 5, 9])
def test_permutation_p_equals_enumeration(num_pairs):
    source = random.Random(num_pairs)
    for _ in range(20):
        values = [source.choice([-2.0, -1.0, 0.0, 1.0, 1.5, 3.0]) for _ in range(num_pairs)]
        patterns = [
            sum(sign * abs(value) for sign, value in zip(signs, values, strict=True))
            for signs in itertools.product((1, -1), repeat=num_pairs)
        ]
        expected = sum(total >= sum(values) - 1e-9 for total in patterns) / len(patterns)
        assert paired_permutation_p(values) == pytest.approx(expected)


def test_permutation_p_of_all_positive_pairs_is_one_pattern():
    assert paired_permutation_p([0.1] * 10) == 1 / 1024
    assert paired_permutation_p([0.1 + 0.01 * step for step in range(41)]) == 2.0**-41
    assert paired_permutation_p([0.0, 0.0]) == 1.0


def test_mann_whitney_p_equals_enumeration():
    base, other = [1.0, 3.0, 3.0, 7.0], [3.0, 5.0, 8.0]
    pooled = [*base, *other]
    ranks = [
        sum(value > one for one in pooled) + (1 + sum(value == one for one in pooled)) / 2
        for value in pooled
    ]
    sums = [sum(ranks[at] for at in chosen) for chosen in itertools.combinations(range(7), 3)]
    expected = sum(total >= sum(ranks[4:]) for total in sums) / len(sums)
    assert mann_whitney_p(base, other) == pytest.approx(expected)


def test_holm_steps_down_and_stays_monotone():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_sign_test_is_two_sided_and_exact():
    assert sign_test_p(0, 10) == pytest.approx(2 / 1024)
    assert sign_test_p(11, 11) == pytest.approx(2 / 2048)
    assert sign_test_p(5, 10) == 1.0
    assert sign_test_p(0, 0) == 1.0


def test_standard_errors():
    # deviation 1 over 4 values, times sqrt(pi / 3)
    assert effect_standard_error([0.0, 1.0, 1.0, 2.0]) == pytest.approx(
        math.sqrt(2 / 3) / 2 * math.sqrt(math.pi / 3)
    )
    # within-side variances 2 and 2, two values each: sqrt(2 * (1/2 + 1/2))
    assert shift_standard_error([0.0, 2.0], [10.0, 12.0]) == pytest.approx(
        math.sqrt(2.0) * math.sqrt(math.pi / 3)
    )
    # a quiet history of 5 values with variance 0 leaves (2 + 2 + 0) / 6
    assert shift_standard_error([0.0, 2.0], [10.0, 12.0], [7.0] * 5) == pytest.approx(
        math.sqrt(4 / 6) * math.sqrt(math.pi / 3)
    )


@pytest.mark.parametrize("function", [hodges_lehmann, paired_permutation_p, paired_lower_bound])
@pytest.mark.parametrize("values", [[], [float("nan")], [float("inf"), 1.0]])
def test_nothing_and_nan_are_refused(function, values):
    with pytest.raises(ValueError, match="statistics over"):
        function(values)
