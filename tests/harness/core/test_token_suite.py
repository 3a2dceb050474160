"""Prompts, pairs and suites refuse what could not be judged."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError
from harness.core.token_suite import NearTieLimits, Prompt, TokenPair, TokenSuite

EXACT, EXACT_CP2 = EngineSettings("", numerics="exact"), EngineSettings("", 2, numerics="exact")
FAST, OTHER, NOISE = (EngineSettings("", max_num_batched_tokens=n) for n in (0, 3, 5))


def test_a_drawn_prompt_is_the_same_everywhere_and_has_no_special_id() -> None:
    """random.Random(1) starts with 0.13436424..., 0.84743373..., 0.76377461..., on any Python."""
    assert Prompt("p", 1, length=5, seed=1).token_ids(512) == (71, 434, 391, 132, 255)
    many = Prompt("p", 1, length=5000, seed=9).token_ids(20)
    assert set(many) == set(range(3, 20))
    assert Prompt("p", 1, length=9, seed=2).token_ids(20) == Prompt(
        "q", 4, length=9, seed=2
    ).token_ids(20)


def test_given_ids_are_kept_and_checked_against_the_vocabulary() -> None:
    prompt = Prompt("p", 1, ids=(5, 0, 7))
    assert prompt.num_tokens == 3
    assert prompt.token_ids(8) == (5, 0, 7)
    with pytest.raises(UsageError, match="id 7 at position 2 is outside the vocabulary of 7"):
        prompt.token_ids(7)
    with pytest.raises(UsageError, match="leaves no id"):
        Prompt("p", 1, length=1).token_ids(3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 1}, "not both"),
        ({"max_tokens": 1, "ids": (1,), "length": 2}, "not both"),
        ({"max_tokens": 0, "length": 2}, "at least one token"),
        ({"max_tokens": 1, "length": -2}, "positive length"),
        ({"max_tokens": 1, "length": 2, "min_blocks_excluded_share": 1.1}, "share in"),
        ({"max_tokens": 1, "length": 2, "min_window_wraps": -1}, "at least 0"),
    ],
)
def test_an_impossible_prompt_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Prompt("p", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"candidate": EXACT, "judge": "equal", "logit_bound": 0.0}, "same setting"),
        ({"judge": "close", "logit_bound": 0.0}, "'equal' or 'near_tie'"),
        ({"judge": "equal"}, "has a logit_bound"),
        ({"judge": "near_tie", "logit_bound": 1.0, "noise": (NOISE,)}, "has a logit_bound"),
        ({"judge": "near_tie"}, "has noise runs"),
        ({"judge": "equal", "logit_bound": 1.0, "noise": (NOISE,)}, "has noise runs"),
        ({"judge": "near_tie", "noise": (EXACT_CP2,)}, "must not involve the candidate"),
    ],
)
def test_an_impossible_pair_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenPair(**{"name": "x", "candidate": EXACT_CP2, "oracle": EXACT, **fields})


def test_a_suite_is_moved_to_a_checkpoint_with_all_its_settings() -> None:
    strict = TokenPair("a", EXACT_CP2, EXACT, "equal", logit_bound=1e-9)
    loose = TokenPair("b", OTHER, FAST, "near_tie", noise=(NOISE,))
    suite = TokenSuite("s", "tiny-A", (Prompt("p", 1, length=2),), (strict, loose))
    assert suite.settings == (EXACT, EXACT_CP2, FAST, NOISE, OTHER)
    moved = suite.at("there")
    assert [s.checkpoint for s in moved.settings] == ["there"] * 5
    assert suite.settings[0].checkpoint == ""
    assert strict.strict
    assert not loose.strict
    assert suite.limits == NearTieLimits(0.01, 0.99, 5e-3, 0.001, 0.1)


def test_a_suite_needs_prompts_and_pairs_of_unique_names() -> None:
    pair = TokenPair("a", EXACT_CP2, EXACT, "equal", logit_bound=1e-9)
    prompt = Prompt("p", 1, length=2)
    with pytest.raises(UsageError, match="has no prompt"):
        TokenSuite("s", "tiny-A", (), (pair,))
    with pytest.raises(UsageError, match="has no pair"):
        TokenSuite("s", "tiny-A", (prompt,), ())
    with pytest.raises(UsageError, match="pair 'a' occurs twice"):
        TokenSuite("s", "tiny-A", (prompt,), (pair, pair))


def test_a_prompt_that_generates_nothing_is_told_about_its_tokens_only() -> None:
    with pytest.raises(UsageError) as caught:
        Prompt("given", 0, ids=(1,))
    assert "max_tokens=0" in str(caught.value)
    assert "length" not in str(caught.value)


def test_an_id_outside_the_vocabulary_is_answered_with_its_range() -> None:
    with pytest.raises(UsageError, match="give ids from 0 to 511"):
        Prompt("given", 1, ids=(512,)).token_ids(512)
