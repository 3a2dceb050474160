"""The distribution that sampled tokens follow."""

from __future__ import annotations

import numpy as np
import pytest

from engine.serve.requests import Sampling
from engine.serve.sampling import TokenChooser

LOGITS = np.log(np.array([0.4, 0.3, 0.2, 0.05, 0.05]))
# Upper 0.1 % point of chi-square with 4 degrees of freedom.
CHI_SQUARE_LIMIT = 18.47


def counts(sampling: Sampling, num_draws: int = 20_000, seed: int = 11) -> np.ndarray:
    chooser = TokenChooser(sampling, seed, eos_token_id=4)
    return np.bincount([chooser(LOGITS) for _ in range(num_draws)], minlength=5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    weights = np.array([0.4, 0.3, 0.2, 0.05, 0.05]) ** (1 / temperature)
    expected = 20_000 * weights / weights.sum()
    found = counts(Sampling(8, temperature=temperature))
    assert ((found - expected) ** 2 / expected).sum() < CHI_SQUARE_LIMIT


def test_the_chi_square_would_notice_a_wrong_temperature() -> None:
    expected = 20_000 * np.array([0.4, 0.3, 0.2, 0.05, 0.05])
    found = counts(Sampling(8, temperature=1.1))
    assert ((found - expected) ** 2 / expected).sum() > CHI_SQUARE_LIMIT


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 1}, [0]),
        ({"top_p": 0.69}, [0, 1]),
        ({"top_p": 0.71}, [0, 1, 2]),
        ({"top_p": 1e-9}, [0]),
        ({"top_k": 3, "top_p": 0.7}, [0, 1]),
    ],
)
def test_top_k_and_top_p_keep_the_likeliest(changes: dict[str, float], kept: list[int]) -> None:
    found = counts(Sampling(8, temperature=1.0, **changes), num_draws=2000)
    assert np.flatnonzero(found).tolist() == kept


def test_the_end_token_waits_for_the_smallest_number_of_tokens() -> None:
    likely_end = np.array([0.0, 0.0, 0.0, 1.0, 9.0])
    chooser = TokenChooser(Sampling(8, min_tokens=2), 0, eos_token_id=4)
    assert [chooser(likely_end) for _ in range(4)] == [3, 3, 4, 4]


def test_greedy_ties_go_to_the_lowest_id_and_need_no_chooser() -> None:
    chooser = TokenChooser(Sampling(8, min_tokens=1), 0, eos_token_id=4)
    assert chooser(np.array([1.0, 3.0, 3.0, 0.0, 3.0])) == 1
    assert not TokenChooser.is_needed(Sampling(8))
    assert not TokenChooser.is_needed(Sampling(8, min_tokens=3, ignore_eos=True))
    assert TokenChooser.is_needed(Sampling(8, min_tokens=3))
    assert TokenChooser.is_needed(Sampling(8, temperature=0.1))
