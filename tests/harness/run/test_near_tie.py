"""The near-tie rule on hand-computed logits."""

import numpy as np
import pytest

from harness.core.status import PositionStatus
from harness.run.near_tie import (
    bf16_ulp,
    judge_equal,
    judge_near_tie,
    logit_bound,
    mean_kl_nats,
    noise_of,
    tie_width,
    top1_margins,
)


@pytest.mark.parametrize(
    ("value", "ulp"),
    [(1.0, 2**-7), (1.99, 2**-7), (2.0, 2**-6), (-5.0, 2**-5), (0.0, 2.0**-133), (0.75, 2**-8)],
)
def test_bf16_ulp(value, ulp):
    assert bf16_ulp(value) == ulp


def test_bf16_ulp_refuses_infinity():
    with pytest.raises(ValueError, match="ULP"):
        bf16_ulp(float("inf"))


def test_noise_is_the_99th_percentile_of_the_largest_difference():
    ours = np.zeros((101, 4))
    theirs = np.zeros((101, 4))
    theirs[:, 2] = -np.arange(101) / 100
    assert noise_of([(ours, theirs)]) == pytest.approx(0.99)
    assert noise_of([(ours[:50], theirs[:50]), (ours[50:], theirs[50:])]) == pytest.approx(0.99)


def test_noise_over_nothing_or_nan_is_refused():
    with pytest.raises(ValueError, match="no position"):
        noise_of([])
    with pytest.raises(ValueError, match="finite"):
        noise_of([(np.zeros((1, 2)), np.full((1, 2), np.nan))])


def test_widths_at_a_logit_of_one():
    assert logit_bound(0.01, 1.0) == pytest.approx(0.02 + 2 * 2**-7)
    assert tie_width(0.01, 1.0, 0.1) == pytest.approx(0.02 + 2 * 2**-7)
    assert tie_width(0.2, 1.0, 0.1) == 0.1


def judge(z_ref, z_cand, noise=0.01, max_gap=0.1):
    return judge_near_tie(np.array(z_ref), np.array(z_cand), noise=noise, max_gap=max_gap)


def test_a_flip_within_the_width_on_both_sides_is_a_near_tie():
    assert judge([1.0, 0.97, 0.0], [0.98, 0.99, 0.0]) is PositionStatus.NEAR_TIE


def test_the_same_argmax_is_a_match_whatever_the_distance():
    assert judge([1.0, 0.5], [3.0, 0.5]) is PositionStatus.MATCH


# tau is 0.02 + 2/128 = 0.0356 at |z| = 1
@pytest.mark.parametrize(
    ("z_ref", "z_cand"),
    [
        ([1.0, 0.96, 0.0], [0.98, 0.99, 0.0]),  # the oracle's gap 0.04 is too wide
        ([1.0, 0.97, 0.0], [0.965, 1.003, 0.0]),  # the candidate's gap 0.038 is too wide
        ([1.0, 0.97, 0.0], [0.98, 0.99, 0.04]),  # another logit moved by 0.04
        ([1.0, 0.97, np.nan], [0.98, 0.99, 0.0]),
        ([1.0, 0.97, 0.0], [0.98, np.inf, 0.0]),
    ],
)
def test_each_condition_alone_makes_a_flip_diverge(z_ref, z_cand):
    assert judge(z_ref, z_cand) is PositionStatus.DIVERGED


def test_tau_never_exceeds_the_largest_gap():
    assert judge([1.0, 0.85], [0.9, 0.95], noise=10.0) is PositionStatus.DIVERGED
    assert judge([1.0, 0.95], [0.9, 0.95], noise=10.0) is PositionStatus.NEAR_TIE


def test_an_exact_tie_goes_to_the_lowest_id():
    assert judge([0.5, 1.0, 1.0], [0.5, 1.0, 0.9]) is PositionStatus.MATCH


@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0])
def test_no_flip_of_random_garbage_passes(scale):
    random = np.random.default_rng(7)
    reference = random.normal(0.0, scale, (500, 512))
    garbage = random.normal(0.0, scale, (500, 512))
    verdicts = [
        judge_near_tie(ours, theirs, noise=0.02, max_gap=0.1)
        for ours, theirs in zip(reference, garbage, strict=True)
        if ours.argmax() != theirs.argmax()
    ]
    assert len(verdicts) > 450
    assert set(verdicts) == {PositionStatus.DIVERGED}


def test_equal_judge_holds_ids_and_bound():
    z = np.array([1.0, 2.0])
    assert judge_equal(z, z + 1e-10, bound=1e-9) is PositionStatus.MATCH
    assert judge_equal(z, z + 1e-8, bound=1e-9) is PositionStatus.DIVERGED
    assert judge_equal(z, z.copy(), bound=0.0) is PositionStatus.MATCH
    assert judge_equal(z, np.nextafter(z, 9), bound=0.0) is PositionStatus.DIVERGED
    assert judge_equal(z, np.array([2.0, 1.0]), bound=5.0) is PositionStatus.DIVERGED
    assert judge_equal(z, np.array([np.nan, 2.0]), bound=5.0) is PositionStatus.DIVERGED


def test_kl_of_known_distributions():
    reference = np.log(np.array([[0.5, 0.5], [0.5, 0.5]]))
    candidate = np.log(np.array([[0.25, 0.75], [0.5, 0.5]]))
    expected = (0.5 * np.log(2) + 0.5 * np.log(2 / 3)) / 2
    assert mean_kl_nats(reference, candidate + 3.0) == pytest.approx(expected)


def test_margins():
    assert top1_margins(np.array([[1.0, 4.0, 2.5], [3.0, 3.0, 0.0]])) == (1.5, 0.0)
