"""Every answer follows from the sequence, at the distance that its family promises."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tiny_checkpoints.recall_tasks import FAMILIES, draw_task, ids_of, permuted, text_of

_RECALLS = ["recall-near", "recall-2", "recall-1"]


@pytest.mark.parametrize("name", FAMILIES)
def test_tasks_have_the_length_marker_and_distances_of_their_family(name: str) -> None:
    family, rng = FAMILIES[name], np.random.default_rng(3)
    for _ in range(20):
        task = draw_task(family, 97, rng)
        low, high = family.distances
        assert len(task.text) == 97
        assert task.text[0] == family.marker
        assert task.answers
        assert all(low <= at <= high for at in task.answers.values() if at)


@pytest.mark.parametrize("name", ["loop-near", "edge", "loop-2", "loop-1"])
def test_a_repeated_answer_stands_at_its_distance(name: str) -> None:
    task = draw_task(FAMILIES[name], 97, np.random.default_rng(4))
    for at, distance in task.answers.items():
        assert task.text[at] == task.text[at - 1 - distance]


@pytest.mark.parametrize("name", _RECALLS)
def test_a_query_is_answered_by_the_last_pair_of_its_key(name: str) -> None:
    rng, asked, absent = np.random.default_rng(5), 0, 0
    for _ in range(20):
        task = draw_task(FAMILIES[name], 97, rng)
        for at, distance in task.answers.items():
            mark, key, answer = task.text[at - 2 : at + 1]
            told = [
                found.start() + 1
                for found in re.finditer(f"(?<![?!%&]){key}[a-z]", task.text[: at - 1])
            ]
            asked += 1
            if answer == "-":
                absent += 1
                assert (told, distance) == ([], 0)
            else:
                assert told[-1] == at - 1 - distance
                assert answer == permuted(task.text[told[-1]], mark)
    assert absent > 5
    assert asked > 100


def test_marks_permute_the_letters() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    for mark in "?!%&":
        assert sorted(permuted(one, mark) for one in letters) == list(letters)
    assert permuted("x", "?") == "x"
    assert len({permuted("x", mark) for mark in "?!%&"}) == 4


def test_text_and_ids_are_the_tokenizers() -> None:
    assert ids_of("Aa?") == [3 + 65, 3 + 97, 3 + 63]
    assert text_of([68, 100, 66, 1, 300]) == "Aa?.."
