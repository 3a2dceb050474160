"""What the engine knows of a request is told to the client that asks, and to nobody else."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM
from tests.engine.oracle import settings, vectors
from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_engine

ASKING = {"x-neuron-harness-facts": "1"}
BODY: dict[str, Any] = {"prompt": [7, 8, 9, 10, 11], "max_tokens": 6, "ignore_eos": True}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 6,
    "ignore_eos": True,
}


def last_event(server: RunningServer, path: str, body: dict[str, Any], **headers: str) -> Any:
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    text = server.http.post(path, json=stream, headers=headers).text
    return json.loads(text.split("\n\n")[-3].removeprefix("data: "))


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)]
)
def test_the_usage_chunk_carries_them_only_where_asked(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    plain = last_event(server, path, body)
    assert set(plain) == {"id", "object", "created", "model", "choices", "usage"}
    asked = last_event(server, path, body, **ASKING)
    assert set(asked) == {*plain, "neuron_harness"}
    (facts,) = asked["neuron_harness"]["sequences"]
    bucket = server.bridge.engine.limits.padded_rows(
        asked["usage"]["prompt_tokens"], has_prompt_rows=True
    )
    assert facts["bucket"] == bucket
    assert facts["padding_share"] == 1 - asked["usage"]["prompt_tokens"] / bucket
    assert (facts["num_prefill_steps"], facts["num_decode_steps"]) == (1, 5)
    assert facts["counters"]["collectives"] == 0.0


def test_a_body_has_one_entry_a_prompt_and_none_where_a_text_ended_it(
    server: RunningServer,
) -> None:
    text = server.post("/v1/completions", **BODY).json()["choices"][0]["text"]
    stop = next(character for character in text if character.strip())
    body = {**BODY, "prompt": [BODY["prompt"], [3]], "stop": [stop]}
    answer = server.http.post("/v1/completions", json=body, headers=ASKING).json()
    first, _ = answer["neuron_harness"]["sequences"]
    assert first is None
    assert len(answer["neuron_harness"]["sequences"]) == 2
    assert "neuron_harness" not in server.http.post("/v1/completions", json=body).json()


def test_counters_and_acceptance_are_those_of_the_same_prompt_offline() -> None:
    arrays = vectors("steady_mtp", "exact")
    prompt, count = arrays["ids"].tolist(), len(arrays["generated"])
    with LLM(settings(speculative="dspark")) as llm:
        (offline,) = llm.generate([prompt], max_tokens=count)
    body = {"prompt": prompt, "max_tokens": count, "ignore_eos": True}
    with running(LLM(settings(speculative="dspark"))) as server:
        (facts,) = last_event(server, "/v1/completions", body, **ASKING)["neuron_harness"][
            "sequences"
        ]
    assert facts["counters"] == dict(offline.counters)
    assert facts["counters"]["num_drafts"] > 0
    assert (facts["bucket"], facts["padding_share"]) == (offline.bucket, offline.padding_share)
    assert facts["num_decode_steps"] == len(set(offline.token_ns)) - 1 < count - 1


def test_the_log_line_times_the_answer_as_it_was_sent(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="neuron_harness.serve")
    with running(formula_engine(checkpoint, step_s=0.02)) as server:
        last_event(server, "/v1/completions", BODY)
        server.post("/v1/completions", **BODY)
        server.post("/v1/completions", **{**BODY, "max_tokens": 0})
        server.wait_until(lambda: caplog.text.count("path=/v1/completions") == 3)
    streamed, whole, refused = [
        one.getMessage() for one in caplog.records if "path=/v1/completions" in one.getMessage()
    ]
    words = dict(word.split("=", 1) for word in streamed.split())
    assert words["completion_tokens"] == "6"
    assert 20 <= float(words["ttft_ms"]) < float(words["elapsed_ms"])
    assert float(words["tpot_ms"]) == pytest.approx(20, rel=0.5)
    assert re.search("completion_tokens=6", whole)
    assert "ttft_ms" not in whole
    assert "completion_tokens" not in refused
