"""Scores against the official code's own logits, and intervals by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engine.llm import LLM
from harness.core.errors import InputError, UsageError
from harness.core.evaluation import EvaluationItem, EvaluationTask, ItemScore
from harness.run.evaluate import choice_logprob, evaluate_items, scores_of, wilson_interval
from suites.loader import list_suites, load_evaluation
from tests.engine.oracle import settings, vectors


def official_logprob(logits: np.ndarray, ids: list[int], num_context: int) -> float:
    """Worked out position by position from the official logits."""
    total = 0.0
    for position in range(num_context, len(ids)):
        row = logits[position - 1].astype(np.float64)
        total += row[ids[position]] - math.log(sum(math.exp(value) for value in row))
    return total


def test_choices_get_the_official_codes_log_probabilities() -> None:
    arrays = vectors("steady_mtp", "exact")
    ids, logits = arrays["ids"].tolist(), arrays["logits"]
    item = EvaluationItem(tuple(ids[:10]), (tuple(ids[10:14]), (7, 8)), 0)
    task = EvaluationTask("one", (item,))
    with LLM(settings("steady_mtp")) as engine:
        (score,) = evaluate_items(task, engine, None)
    expected = official_logprob(logits, ids[:14], 10)
    assert score.logprobs[0] == pytest.approx(expected, abs=1e-4)
    assert score.num_tokens == (4, 2)


def test_a_choice_is_greedy_where_every_token_is_the_likeliest() -> None:
    logits = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 3.0], [0.0, 0.0, 1.0]])
    logprob, greedy = choice_logprob(logits, [0, 1, 0], 1)
    first = 2 - math.log(math.exp(0) + math.exp(2) + math.exp(1))
    second = 3 - math.log(2 * math.exp(3) + 1)
    assert logprob == pytest.approx(first + second)
    assert greedy
    assert not choice_logprob(logits, [0, 2, 0], 1)[1]


def scored(right: int, wrong: int) -> list[ItemScore]:
    good = ItemScore((-1.0, -2.0), (2, 2), (4, 4), 0)
    bad = ItemScore((-3.0, -2.0), (2, 2), (4, 4), 0)
    return [good] * right + [bad] * wrong


def test_scores_and_their_intervals() -> None:
    accuracy, by_length, likelihood = scores_of(scored(8, 2))
    assert (accuracy.name, accuracy.value, accuracy.num_items) == ("accuracy", 0.8, 10)
    # Wilson 1927 for 8 of 10, worked out by hand.
    assert accuracy.low == pytest.approx(0.4901625, abs=1e-6)
    assert accuracy.high == pytest.approx(0.9433178, abs=1e-6)
    assert by_length.value == 0.8
    assert likelihood.value == pytest.approx((8 * -0.5 + 2 * -1.5) / 10)
    assert likelihood.low < likelihood.value < likelihood.high


def test_length_decides_where_choices_differ_in_it() -> None:
    item = ItemScore((-4.0, -3.0), (4, 1), (8, 2), 0)
    accuracy, by_length, _ = scores_of([item])
    assert (accuracy.value, by_length.value) == (0.0, 1.0)


def test_of_equal_choices_the_first_counts_and_shares_stay_within_bounds() -> None:
    assert ItemScore((-1.0, -1.0), (1, 1), (1, 1), 0).is_right
    assert not ItemScore((-1.0, -1.0), (1, 1), (1, 1), 1).is_right
    assert wilson_interval(0, 5)[0] == 0.0
    assert wilson_interval(5, 5)[1] == 1.0
    assert wilson_interval(5, 5)[0] < 1.0


def test_text_needs_a_tokenizer_and_errors_name_the_item() -> None:
    task = EvaluationTask(
        "words", (EvaluationItem((5,), ((6,), (7,))), EvaluationItem("a", ("b", "c")))
    )
    with (
        LLM(settings("steady_mtp")) as engine,
        pytest.raises(UsageError, match=r"'words', item 1: the checkpoint has no tokenizer"),
    ):
        list(evaluate_items(task, engine, None))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no item"),
        ("[[items]]\ncontext = [1]\n", "context and choices"),
        ("[[items]]\ncontext = [1]\nchoices = []\n", "none of them empty"),
        ("[[items]]\ncontext = [1]\nchoices = [[2], [3]]\nanswer = 2\n", "index of 2 choices"),
        ("[[items]]\ncontext = [1.5]\nchoices = [[2]]\n", "list of token ids"),
        ("[[items]]\ncontext = [1]\nchoices = [[2]]\nanser = 0\n", "unknown key"),
        ('[[items]]\ncontext = "a"\nchoices = "b"\n', "must be a list"),
    ],
)
def test_a_wrong_task_file_names_its_place(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "task.toml"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        load_evaluation(str(file))


def test_the_shipped_task_has_questions_and_a_stored_score() -> None:
    assert "tiny" in list_suites("evaluations")
    task = load_evaluation("tiny")
    assert len(task.items) == 22
    assert set(task.stored[0].values) == {"accuracy", "accuracy_by_length", "logprob_per_token"}
