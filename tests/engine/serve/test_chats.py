"""/v1/chat/completions and the prompt it makes (model.md §1.4)."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from engine.chat import encode_chat
from harness.core.errors import UsageError
from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_engine

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("turns", "thinking", "prompt"),
    [
        ([("user", "Hi")], False, BOS + "<｜User｜>Hi<｜Assistant｜></think>"),
        (
            [("system", "Be brief."), ("user", "Hi")],
            False,
            BOS + "<｜System｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>",
        ),
        (
            [("user", "Hi")],
            True,
            BOS + "<｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more "
            "thorough the reasoning)\n\n<｜User｜>Hi<｜Assistant｜><think>",
        ),
        (
            [("user", "A"), ("assistant", "<think>because</think>B"), ("user", "C")],
            False,
            BOS + f"<｜User｜>A<｜Assistant｜></think>B{EOS}<｜User｜>C<｜Assistant｜></think>",
        ),
        (
            [("user", "A"), ("assistant", "B"), ("system", "C")],
            False,
            BOS + f"<｜User｜>A<｜Assistant｜></think>B{EOS}<｜System｜>C<｜Assistant｜></think>",
        ),
    ],
)
def test_turns_become_the_models_own_prompt(
    turns: list[tuple[str, str]], thinking: bool, prompt: str
) -> None:
    assert encode_chat(turns, thinking=thinking) == prompt


def test_efforts_and_unknown_words() -> None:
    for effort, number in (("low", 50), ("high", 75), ("max", 100)):
        assert f"Effort: {number} " in encode_chat([("user", "x")], thinking=True, effort=effort)
    with pytest.raises(UsageError, match="effort 'huge'"):
        encode_chat([("user", "x")], effort="huge")
    with pytest.raises(UsageError, match="role 'tool'"):
        encode_chat([("tool", "x")])


def test_the_stream_opens_with_the_role_and_closes_with_the_last_token(
    server: RunningServer,
) -> None:
    options = {"include_usage": True}
    events = server.stream(
        "/v1/chat/completions",
        messages=MESSAGES,
        max_tokens=4,
        ignore_eos=True,
        stream_options=options,
    )
    first, *tokens, usage = events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 3 + ["length"]
    assert all(set(event["choices"][0]["delta"]) == {"content"} for event in tokens)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1


def test_the_role_comes_with_the_first_token_so_that_no_client_takes_it_for_one(
    checkpoint: Path,
) -> None:
    gate = threading.Event()

    def wait(_: int) -> None:
        gate.wait(10)

    engine = formula_engine(checkpoint, before_step=wait)
    body = {"messages": MESSAGES, "max_tokens": 2, "ignore_eos": True, "stream": True}
    with running(engine) as server:
        seen: list[str] = []

        def read() -> None:
            with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                seen.extend(line for line in answer.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        server.wait_until(lambda: engine.scheduler.num_running == 1)
        reader.join(timeout=0.2)
        assert seen == []
        gate.set()
        reader.join()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in seen[:-1]]
    assert [sorted(delta) for delta in deltas] == [["content", "role"], ["content"], ["content"]]


def test_parts_and_text_are_the_same_message(server: RunningServer) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    answers = [
        server.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": content}],
            max_tokens=5,
            ignore_eos=True,
        ).json()
        for content in ("Hi", parts)
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    prompt = server.post("/tokenize", prompt=encode_chat([("user", "Hi")])).json()["tokens"]
    assert answers[0]["usage"]["prompt_tokens"] == len(prompt)
    assert prompt[0] == 0
    same = server.post("/v1/completions", prompt=prompt, max_tokens=5, ignore_eos=True).json()
    assert same["choices"][0]["text"] == answers[0]["choices"][0]["message"]["content"]


def test_without_a_limit_a_chat_may_fill_the_context(server: RunningServer) -> None:
    answer = server.post("/v1/chat/completions", messages=MESSAGES, ignore_eos=True).json()
    assert answer["usage"]["total_tokens"] == 128


def test_chat_logprobs_have_openais_form(server: RunningServer) -> None:
    answer = server.post(
        "/v1/chat/completions", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
    ).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for entry in content:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]
        assert len(entry["top_logprobs"]) == 2
        assert bytes(entry["bytes"]).decode() == entry["token"]
