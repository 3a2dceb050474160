"""The distribution that sampled tokens follow, with and without drafts (model.md §2.10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.schedule.choice import TokenChooser
from engine.schedule.distribution import Candidates, Distribution, SamplingRule
from harness.core.errors import UsageError

Numbers = npt.NDArray[np.float64]

TARGET = np.array([0.4, 0.3, 0.2, 0.05, 0.05])
# Upper 0.1 % points of chi-square.
LIMIT = {2: 13.82, 4: 18.47, 24: 51.18}
NUM_DRAWS = 20_000


def candidates(probabilities: Numbers) -> Candidates:
    return Candidates.of_row(np.log(probabilities))


def chooser(**rule: Any) -> TokenChooser:
    return TokenChooser(SamplingRule(**{"temperature": 1.0, "seed": 11, **rule}), eos_token_id=4)


def counts(num_draws: int = NUM_DRAWS, **rule: Any) -> npt.NDArray[np.int64]:
    one, row = chooser(**rule), candidates(TARGET)
    return np.bincount([one.choose([row])[0] for _ in range(num_draws)], minlength=5)


def chi_square(found: npt.NDArray[np.int64], probabilities: Numbers) -> float:
    expected = found.sum() * probabilities
    return float(((found - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    weights = TARGET ** (1 / temperature)
    assert chi_square(counts(temperature=temperature), weights / weights.sum()) < LIMIT[4]


def test_the_chi_square_would_notice_a_wrong_temperature() -> None:
    assert chi_square(counts(temperature=1.1), TARGET) > LIMIT[4]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 1}, [0]),
        ({"top_p": 0.69}, [0, 1]),
        ({"top_p": 0.71}, [0, 1, 2]),
        ({"top_p": 1e-9}, [0]),
        ({"top_k": 3, "top_p": 0.7}, [0, 1]),
    ],
)
def test_top_k_and_top_p_keep_the_likeliest(rule: dict[str, float], kept: list[int]) -> None:
    assert np.flatnonzero(counts(2000, **rule)).tolist() == kept


def test_what_is_kept_keeps_its_proportions() -> None:
    found = counts(top_k=3)[:3]
    assert chi_square(found, TARGET[:3] / 0.9) < LIMIT[2]


def test_the_end_token_waits_for_the_smallest_number_of_tokens() -> None:
    row = Candidates.of_row(np.array([0.0, 0.0, 0.0, 1.0, 9.0]))
    one = chooser(temperature=0.0, min_tokens=2)
    assert [one.choose([row])[0] for _ in range(4)] == [3, 3, 4, 4]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    row = Candidates.of_row(np.array([1.0, 3.0, 3.0, 0.0, 3.0]))
    assert row.ids.tolist() == [1, 2, 4, 0, 3]
    assert chooser(temperature=0.0, min_tokens=1).choose([row]) == (1,)


@pytest.mark.parametrize("temperature", [1e-320, 1e-9, 1e300])
def test_extreme_temperatures_and_removed_words_stay_probabilities(temperature: float) -> None:
    row = Candidates.of_row(np.array([1.0, 3.0, -np.inf, 0.0, 2.0]))
    found = Distribution.of(row, SamplingRule(temperature=temperature))
    assert found.probabilities.sum() == pytest.approx(1)
    assert found.at(np.array([2])) == 0
    expected = 1.0 if temperature < 1 else 0.25
    assert found.at(np.array([1]))[0] == pytest.approx(expected)


def test_a_chooser_needs_no_more_tokens_than_its_rule_keeps() -> None:
    assert chooser().num_candidates == 0
    assert chooser(top_p=0.5).num_candidates == 0
    assert chooser(top_k=7).num_candidates == 7
    assert chooser(top_k=7, min_tokens=3).num_candidates == 8
    # What kernels take; beyond it whole rows travel.
    assert chooser(top_k=1024).num_candidates == 1024
    assert chooser(top_k=1025).num_candidates == 0
    assert chooser(top_k=1024, min_tokens=1).num_candidates == 0
    assert chooser(temperature=0.0, min_tokens=3).num_candidates == 2


def test_the_best_few_tokens_of_a_row_give_the_draws_of_the_whole_row() -> None:
    row = candidates(TARGET)
    few = Candidates(row.ids[:4], row.logits[:4])
    one, other = chooser(top_k=3, min_tokens=50), chooser(top_k=3, min_tokens=50)
    assert [one.choose([row]) for _ in range(300)] == [other.choose([few]) for _ in range(300)]


def test_a_draw_depends_on_seed_and_place_alone() -> None:
    row = candidates(TARGET)
    draws = [
        [one.choose([row])[0] for _ in range(60)]
        for one in (chooser(seed=3), chooser(seed=3), chooser(seed=4))
    ]
    assert draws[0] == draws[1] != draws[2]
    # Asking for drafts in between moves nothing.
    one = chooser(seed=3)
    asked = []
    for _ in range(60):
        one.draft_choice(5)
        asked.append(one.choose([row])[0])
    assert asked == draws[0]


# A draft that is right about one token, far too sure of another, and never says a third.
DRAFT = np.array([0.1, 0.6, 0.2, 0.0, 0.1])
SECOND = np.array([0.05, 0.05, 0.1, 0.5, 0.3])


def _speculated(first_draft: Numbers, second_draft: Numbers, num_draws: int) -> list[list[int]]:
    """Pairs of tokens, each from a block of two drafts over rows TARGET and SECOND."""
    one = chooser(seed=29)
    drafts = [Distribution(np.arange(5), p) for p in (first_draft, second_draft)]
    rows = [candidates(TARGET), candidates(SECOND), candidates(TARGET)]
    pairs = []
    for _ in range(num_draws):
        points = one.draft_choice(2).points
        proposed = [draft.draw(point) for draft, point in zip(drafts, points, strict=True)]
        chosen = list(one.choose(rows, proposed, drafts))
        if len(chosen) == 1:
            chosen += one.choose([rows[1]])
        pairs.append(chosen[:2])
    return pairs


def test_verified_drafts_follow_the_targets_own_distribution() -> None:
    """Both tokens jointly, so that acceptance of the first may not tilt the second."""
    pairs = np.array(_speculated(DRAFT, np.full(5, 0.2), NUM_DRAWS))
    found = np.bincount(pairs[:, 0] * 5 + pairs[:, 1], minlength=25)
    assert chi_square(found, np.outer(TARGET, SECOND).ravel()) < LIMIT[24]


def test_the_chi_square_would_notice_drafts_that_are_always_accepted() -> None:
    one = chooser(seed=29)
    draft = Distribution(np.arange(5), DRAFT)
    tokens = []
    for _ in range(NUM_DRAWS):
        (point,) = one.draft_choice(1).points
        tokens.append(draft.draw(point))
        one.choose([candidates(TARGET)])
    assert chi_square(np.bincount(tokens, minlength=5), TARGET) > LIMIT[4]


def test_the_share_of_accepted_drafts_is_the_overlap_of_both_distributions() -> None:
    one = chooser(seed=31)
    draft = Distribution(np.arange(5), DRAFT)
    accepted = 0
    for _ in range(NUM_DRAWS):
        (point,) = one.draft_choice(1).points
        chosen = one.choose([candidates(TARGET)] * 2, [draft.draw(point)], [draft])
        accepted += len(chosen) - 1
    overlap = np.minimum(TARGET, DRAFT).sum()
    spread = np.sqrt(overlap * (1 - overlap) / NUM_DRAWS)
    assert abs(accepted / NUM_DRAWS - overlap) < 4 * spread


def test_equal_distributions_accept_every_draft() -> None:
    one = chooser(seed=37)
    row = candidates(TARGET)
    same = Distribution.of(row, SamplingRule(temperature=1.0))
    for _ in range(200):
        (point,) = one.draft_choice(1).points
        assert len(one.choose([row] * 2, [same.draw(point)], [same])) == 2
    assert same.beyond(same) is same


def test_a_draft_that_may_not_be_said_is_replaced() -> None:
    """The end token, drafted before min_tokens are out."""
    one = chooser(min_tokens=3, seed=41)
    sure_end = Distribution(np.array([4]), np.ones(1))
    chosen = one.choose([candidates(TARGET)] * 2, [4], [sure_end])
    assert len(chosen) == 1
    assert chosen[0] != 4


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: it is finite and at least 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0: it lies within"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_k": -1}, "top_k=-1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SamplingRule(**rule)  # type: ignore[arg-type]
