"""Logits that are no numbers end a request with an error, never with a token."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM
from engine.serve.app import ServeOptions
from tests.engine.oracle import settings
from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_continuation, formula_engine
from tests.harness.cli.test_finite_logits import with_nan

PROMPT = [7, 8, 9]
NAN_AT = 5  # of 3 prompt tokens the last row is 2: three tokens are sound

GREEDY: dict[str, Any] = {}
SAMPLED: dict[str, Any] = {"temperature": 0.7, "seed": 3}
SCORED: dict[str, Any] = {"logprobs": 2}


def body(**changes: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, **changes}


def assert_pool_is_whole(server: RunningServer) -> None:
    pool = server.bridge.engine.scheduler.pool
    server.wait_until(lambda: server.bridge.num_in_flight == 0)
    assert pool.num_free_pages == server.bridge.engine.limits.num_pages - 1


@pytest.mark.parametrize("picking", [GREEDY, SAMPLED, SCORED])
def test_a_stream_ends_with_an_error_after_its_sound_tokens(
    checkpoint: Path, picking: dict[str, Any]
) -> None:
    with running(formula_engine(checkpoint, nan_at=NAN_AT)) as server:
        answer = server.post("/v1/completions", **body(stream=True, **picking))
        *events, rest = answer.text.split("\n\n")
        *tokens, last = [json.loads(one.removeprefix("data: ")) for one in events]
        assert rest == ""
        assert len(tokens) == NAN_AT - len(PROMPT) + 1
        assert [one["choices"][0]["finish_reason"] for one in tokens] == [None] * len(tokens)
        assert last["error"]["type"] == "server_error"
        assert last["error"]["code"] == "nonfinite_logits"
        assert f"not finite at position {NAN_AT}" in last["error"]["message"]
        assert_pool_is_whole(server)


@pytest.mark.parametrize("picking", [GREEDY, SAMPLED, SCORED])
def test_an_answer_without_a_stream_is_a_500(checkpoint: Path, picking: dict[str, Any]) -> None:
    with running(formula_engine(checkpoint, nan_at=NAN_AT)) as server:
        answer = server.post("/v1/completions", **body(**picking))
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "nonfinite_logits"
        chat = server.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], max_tokens=60
        )
        assert chat.status_code == 200, "the prompt is past the position"
        assert_pool_is_whole(server)
        assert server.metric('neuron_harness_sequences_total{reason="error"}') == 1


def test_a_stream_without_a_sound_token_is_a_plain_500(checkpoint: Path) -> None:
    with running(formula_engine(checkpoint, nan_at=len(PROMPT) - 1)) as server:
        answer = server.post("/v1/completions", **body(stream=True))
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/json"


def test_a_prompts_own_log_probabilities_are_refused_too(checkpoint: Path) -> None:
    with running(formula_engine(checkpoint, nan_at=1)) as server:
        scored = body(echo=True, logprobs=1, max_tokens=1)
        assert server.post("/v1/completions", **scored).status_code == 500
        assert server.post("/v1/completions", **body()).status_code == 200


def test_requests_beside_it_go_on(checkpoint: Path) -> None:
    """One row is damaged, that of the longer prompt's last position."""
    long, short = [5] * (NAN_AT + 1), [11, 12]
    with running(formula_engine(checkpoint, step_s=0.01, nan_at=NAN_AT)) as server:
        answers: dict[str, Any] = {}

        def ask(name: str, prompt: list[int], max_tokens: int) -> None:
            given = body(prompt=prompt, max_tokens=max_tokens, logprobs=0)
            answers[name] = server.post("/v1/completions", **given)

        threads = [
            threading.Thread(target=ask, args=("long", long, 4)),
            threading.Thread(target=ask, args=("short", short, 3)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers["long"].status_code == 500
        assert answers["short"].status_code == 200
        tokenizer = server.http.post("/detokenize", json={"tokens": formula_continuation(short, 3)})
        assert answers["short"].json()["choices"][0]["text"] == tokenizer.json()["prompt"]


@pytest.mark.parametrize("picking", [GREEDY, SAMPLED])
def test_a_damaged_weight_of_a_real_checkpoint_gives_no_token(
    tmp_path: Path, picking: dict[str, Any]
) -> None:
    damaged = with_nan(tmp_path, "norm.weight")
    engine = LLM(settings(checkpoint=str(damaged)))
    with running(engine, ServeOptions(model_names=("damaged",))) as server:
        answer = server.post("/v1/completions", **body(**picking))
        assert answer.status_code == 500
        assert "not finite at position 2" in answer.json()["error"]["message"]
        assert server.metric("neuron_harness_generation_tokens_total") == 0
        assert server.http.get("/health").status_code == 200
