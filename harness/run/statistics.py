"""Exact small-sample statistics of the gates (measurement.md §6); pure functions.

Effects are natural logarithms of ratios: log(1.03) is 3 % more. Paired tests assume that under
"no change" each difference is as likely positive as negative, which interleaved pairs give.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = [
    "effect_standard_error",
    "hodges_lehmann",
    "hodges_lehmann_shift",
    "holm",
    "mann_whitney_p",
    "paired_lower_bound",
    "paired_permutation_p",
    "shift_lower_bound",
    "shift_standard_error",
    "sign_test_p",
]

Floats = npt.NDArray[np.float64]

# Asymptotic efficiency of the Hodges-Lehmann estimate against the mean for normal noise is 3/pi.
_HODGES_LEHMANN_EFFICIENCY = 3.0 / math.pi
_MAX_ENUMERATED_PAIRS = 40


def hodges_lehmann(differences: Sequence[float]) -> float:
    """Median of the Walsh averages (d_i + d_j) / 2 with i <= j.

    Raises:
        ValueError: no difference, or one that is not finite.
    """
    return float(np.median(_walsh_averages(_checked(differences))))


def hodges_lehmann_shift(base: Sequence[float], other: Sequence[float]) -> float:
    """Median of all other_j - base_i: the shift between two unpaired samples."""
    return float(np.median(_all_shifts(base, other)))


def paired_lower_bound(differences: Sequence[float], confidence: float = 0.95) -> float | None:
    """One-sided lower confidence bound of the paired effect, from the exact signed-rank law.

    None where the sample is too small for the confidence (fewer than 5 pairs at 95 %).
    """
    averages = np.sort(_walsh_averages(_checked(differences)))
    law = _untied_signed_rank_law(len(differences))
    return _order_statistic(averages, law, 1.0 - confidence)


def shift_lower_bound(
    base: Sequence[float], other: Sequence[float], confidence: float = 0.95
) -> float | None:
    """One-sided lower confidence bound of the shift, from the exact Mann-Whitney law."""
    shifts = np.sort(_all_shifts(base, other))
    return _order_statistic(shifts, _mann_whitney_law(len(base), len(other)), 1.0 - confidence)


def paired_permutation_p(differences: Sequence[float]) -> float:
    """Exact one-sided permutation p for "the differences are positive on average".

    All 2^n sign patterns are counted by the sum they give (Fisher's randomisation test). Beyond
    40 pairs the sums of signed ranks are counted instead, which stays exact and grows slowly.

    Raises:
        ValueError: no difference, or one that is not finite.
    """
    values = _checked(differences)
    if values.size > _MAX_ENUMERATED_PAIRS:
        return _signed_rank_p(values)
    magnitudes = np.abs(values)
    # A pattern's sum is total - 2 * (sum of the flipped magnitudes).
    flipped = float(magnitudes[values < 0].sum())
    half = values.size // 2
    left, right = _subset_sums(magnitudes[:half]), np.sort(_subset_sums(magnitudes[half:]))
    # Patterns that differ only by rounding of equal sums count as equal.
    limit = flipped + 1e-12 * max(1.0, float(magnitudes.sum()))
    counted = int(np.searchsorted(right, limit - left, side="right").sum())
    return counted / 2.0**values.size


def mann_whitney_p(base: Sequence[float], other: Sequence[float]) -> float:
    """Exact one-sided permutation p for "other is larger than base", mid-ranks for ties."""
    base_values, other_values = _checked(base), _checked(other)
    doubled = _doubled_midranks(np.concatenate([base_values, other_values]))
    observed = int(doubled[base_values.size :].sum())
    law = _rank_sum_law(doubled, other_values.size)
    return float(law[observed:].sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def effect_standard_error(differences: Sequence[float]) -> float:
    """Standard error of the Hodges-Lehmann estimate of paired differences.

    Raises:
        ValueError: fewer than two differences.
    """
    values = _checked(differences)
    if values.size < 2:
        raise ValueError("a standard error needs at least two differences")
    mean_error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return mean_error / math.sqrt(_HODGES_LEHMANN_EFFICIENCY)


def shift_standard_error(
    base: Sequence[float], other: Sequence[float], history: Sequence[float] = ()
) -> float:
    """Standard error of the shift between two samples under no change.

    The variance is pooled within the samples, and within `history`: runs of one unchanged build.

    Raises:
        ValueError: a sample of fewer than two.
    """
    groups = [_checked(base), _checked(other)]
    if len(history) >= 2:
        groups.append(_checked(history))
    if min(group.size for group in groups) < 2:
        raise ValueError("a standard error needs at least two values on each side")
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    variance = squares / sum(group.size - 1 for group in groups)
    per_sample = 1.0 / groups[0].size + 1.0 / groups[1].size
    return math.sqrt(variance * per_sample / _HODGES_LEHMANN_EFFICIENCY)


def sign_test_p(num_up: int, num_total: int) -> float:
    """Two-sided exact binomial p of `num_up` among `num_total` at one half; 1 for none."""
    if num_total == 0:
        return 1.0
    tail = min(num_up, num_total - num_up)
    below = sum(math.comb(num_total, count) for count in range(tail + 1))
    return min(1.0, 2.0 * below / 2.0**num_total)


def _subset_sums(values: Floats) -> Floats:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _signed_rank_p(values: Floats) -> float:
    """Wilcoxon's signed rank with mid-ranks; zeros carry no sign and are dropped."""
    values = values[values != 0.0]
    if values.size == 0:
        return 1.0
    doubled = _doubled_midranks(np.abs(values))
    observed = int(doubled[values > 0].sum())
    return float(_signed_rank_law(doubled)[observed:].sum())


def _checked(values: Sequence[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("statistics over no value")
    if not np.isfinite(array).all():
        raise ValueError("statistics over a value that is not finite")
    return array


def _walsh_averages(values: Floats) -> Floats:
    rows, columns = np.triu_indices(values.size)
    averages: Floats = (values[rows] + values[columns]) / 2.0
    return averages


def _all_shifts(base: Sequence[float], other: Sequence[float]) -> Floats:
    shifts: Floats = np.subtract.outer(_checked(other), _checked(base)).ravel()
    return shifts


def _order_statistic(ascending: Floats, law: Floats, alpha: float) -> float | None:
    """The largest order statistic that exceeds the true effect with probability <= alpha.

    With the statistic W = number of averages above the truth, P(W <= k) <= alpha makes the
    (k + 1)-th smallest average a lower bound.
    """
    cumulative = np.cumsum(law)
    allowed = int(np.searchsorted(cumulative, alpha, side="right"))
    return float(ascending[allowed - 1]) if allowed >= 1 else None


def _doubled_midranks(values: Floats) -> npt.NDArray[np.int64]:
    """Twice the mid-ranks, which are whole numbers."""
    below = (values[:, None] > values[None, :]).sum(axis=1)
    equal = (values[:, None] == values[None, :]).sum(axis=1)
    doubled: npt.NDArray[np.int64] = 2 * below + equal + 1
    return doubled


def _signed_rank_law(doubled_ranks: npt.NDArray[np.int64]) -> Floats:
    """Probability of each sum of a random subset of the ranks; index = doubled sum."""
    law = np.zeros(int(doubled_ranks.sum()) + 1)
    law[0] = 1.0
    for rank in doubled_ranks:
        taken = np.zeros_like(law)
        taken[rank:] = law[: law.size - rank]
        law = (law + taken) / 2.0
    return law


@functools.cache
def _untied_signed_rank_law(num_pairs: int) -> Floats:
    return _signed_rank_law(np.arange(1, num_pairs + 1, dtype=np.int64) * 2)[::2]


def _rank_sum_law(doubled_ranks: npt.NDArray[np.int64], num_chosen: int) -> Floats:
    """Probability of each rank sum of a random choice of `num_chosen`; index = doubled sum."""
    total = int(doubled_ranks.sum())
    ways = np.zeros((num_chosen + 1, total + 1))
    ways[0, 0] = 1.0
    for rank in doubled_ranks:
        for count in range(num_chosen, 0, -1):
            ways[count, rank:] += ways[count - 1, : total + 1 - rank]
    law: Floats = ways[num_chosen] / math.comb(doubled_ranks.size, num_chosen)
    return law


@functools.cache
def _mann_whitney_law(num_base: int, num_other: int) -> Floats:
    """Law of U without ties: index = number of (base, other) pairs with other above."""
    ranks = np.arange(1, num_base + num_other + 1, dtype=np.int64) * 2
    smallest = num_other * (num_other + 1)
    largest = smallest + 2 * num_base * num_other
    return _rank_sum_law(ranks, num_other)[smallest : largest + 1 : 2]
