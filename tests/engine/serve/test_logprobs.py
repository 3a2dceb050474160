"""Echoed log-probabilities, as lm-eval's local-completions asks for them (R26)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.llm import LLM
from engine.serve.logprobs import LogprobRecorder
from tests.engine.oracle import settings
from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_continuation, formula_logits, formula_logprobs


def test_echo_gives_one_entry_a_prompt_token_and_one_for_the_new_one(
    server: RunningServer,
) -> None:
    prompts = [[5, 6, 7, 8, 9], [11] * 50, [400]]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    answer = server.post("/v1/completions", **body).json()
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        logprobs = choice["logprobs"]
        ids = [*prompt, *formula_continuation(prompt, 1)]
        assert {len(values) for values in logprobs.values()} == {len(prompt) + 1}
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        expected = formula_logprobs(ids)
        assert logprobs["token_logprobs"][1:] == pytest.approx(expected, abs=1e-12)
        assert all(math.isfinite(value) for value in logprobs["token_logprobs"][1:])
        text = server.post("/detokenize", tokens=ids).json()["prompt"]
        assert choice["text"] == text
        for position, (value, top) in enumerate(
            zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
        ):
            best = int(np.argmax(formula_logits(ids[position], position)))
            # What lm-eval compares to tell a greedy token: the very same float.
            assert (value == max(top.values())) is (best == ids[position + 1])


def test_greedy_tokens_hold_the_top_float_and_others_stand_beside_it(
    server: RunningServer,
) -> None:
    body = {"prompt": [5, 6], "max_tokens": 8, "logprobs": 2, "ignore_eos": True}
    greedy = server.post("/v1/completions", **body).json()["choices"][0]["logprobs"]
    for value, top in zip(greedy["token_logprobs"], greedy["top_logprobs"], strict=True):
        assert value == max(top.values())
    sampled = server.post("/v1/completions", **body, temperature=2.0, seed=1).json()
    logprobs = sampled["choices"][0]["logprobs"]
    named = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    for token, value, top in named:
        # Of two ids with the same text the likelier one holds the place.
        assert top[token] >= value
        assert value in top.values() or token == "\ufffd"
        assert 1 <= len(top) <= 3


def test_streamed_logprobs_equal_those_of_the_whole_answer(server: RunningServer) -> None:
    body = {"prompt": [5, 6], "max_tokens": 6, "logprobs": 3, "ignore_eos": True}
    whole = server.post("/v1/completions", **body).json()["choices"][0]["logprobs"]
    parts = [event["choices"][0]["logprobs"] for event in server.stream("/v1/completions", **body)]
    for key in ("tokens", "token_logprobs", "top_logprobs"):
        assert [value for part in parts for value in part[key]] == whole[key]


def test_the_server_equals_offline_teacher_forcing() -> None:
    with LLM(settings("long")) as offline:
        ids = [*range(20, 60)]
        logits = offline.score(ids)
    expected = [
        float(row[token] - np.log(np.exp(row - row.max()).sum()) - row.max())
        for row, token in zip(logits[:-1], ids[1:], strict=True)
    ]
    with running(LLM(settings("long"))) as server:
        body = {"prompt": [ids, ids[:7]], "echo": True, "logprobs": 1, "max_tokens": 1}
        choices = server.post("/v1/completions", **body).json()["choices"]
    whole, short = (choice["logprobs"]["token_logprobs"] for choice in choices)
    assert whole[1:-1] == pytest.approx(expected, abs=1e-5)
    assert short[1:-1] == pytest.approx(expected[:6], abs=1e-5)
    assert sum(whole[1:-1]) == pytest.approx(sum(expected), abs=1e-5)
    assert whole[-1] == pytest.approx(float(np.max(logits[-1] - np.logaddexp.reduce(logits[-1]))))


def test_rows_behind_an_end_token_are_dropped() -> None:
    recorder = LogprobRecorder(1)
    recorder.take(np.array([[0.0, 1.0], [3.0, 0.0]]))
    (entry,) = recorder.follow([1])
    assert entry.logprob == pytest.approx(-math.log1p(math.exp(-1)))
    recorder.take(np.array([[5.0, 5.0]]))
    (tied,) = recorder.follow([1])
    assert tied.top == ((0, pytest.approx(-math.log(2))),)
    assert tied.logprob == tied.top[0][1]


def test_logits_of_any_size_give_finite_logprobs() -> None:
    recorder = LogprobRecorder(1)
    recorder.take(np.array([[1e4, -1e4, 0.0]]))
    (entry,) = recorder.follow([1])
    assert entry.logprob == pytest.approx(-2e4)
