"""/v1/completions on the wire (measurement.md §5)."""

from __future__ import annotations

import json
import socket
import time
from itertools import pairwise
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_continuation, formula_engine

PROMPT = [7, 8, 9, 10]

# What `vllm bench serve --backend openai` sends.
VLLM_BODY = {
    "model": "formula",
    "prompt": PROMPT,
    "repetition_penalty": 1.0,
    "max_tokens": 6,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
    "temperature": 0.0,
    "some_future_field": {"x": 1},
}


def ids_of(events: list[dict[str, Any]]) -> list[int]:
    return [
        int(token.removeprefix("token_id:"))
        for event in events
        for choice in event["choices"]
        for token in choice["logprobs"]["tokens"]
    ]


def raw_answer(server: RunningServer, body: dict[str, Any]) -> tuple[bytes, list[bytes]]:
    """The head of the answer, and its HTTP chunks as the socket delivers them."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
        )
        data = b""
        while part := connection.recv(65536):
            data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return head, chunks


def test_the_wire_holds_one_event_a_token_then_the_usage_then_done(server: RunningServer) -> None:
    head, chunks = raw_answer(server, VLLM_BODY)
    assert head.startswith(b"HTTP/1.1 200")
    lines = head.lower().split(b"\r\n")
    assert b"content-type: text/event-stream; charset=utf-8" in lines
    assert b"x-accel-buffering: no" in lines
    assert not any(line.startswith(b"content-encoding") for line in lines)
    *events, done, last = chunks
    assert (done, last) == (b"data: [DONE]\n\n", b"")
    assert all(event.startswith(b"data: {") and event.endswith(b"}\n\n") for event in events)
    bodies = [json.loads(event[6:]) for event in events]
    assert len(bodies) == 7
    *tokens, usage = bodies
    assert [body["choices"][0]["finish_reason"] for body in tokens] == [None] * 5 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    for body in bodies:
        assert body["id"] == bodies[0]["id"]
        assert body["id"].startswith("cmpl-")
        assert body["object"] == "text_completion"
        assert body["model"] == "formula"
        assert abs(body["created"] - time.time()) < 60
    assert all("usage" not in body for body in tokens)


def test_tokens_are_those_of_the_model_and_their_text_that_of_the_tokenizer(
    server: RunningServer, checkpoint: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    expected = tokenizer.decode(formula_continuation(PROMPT, 12))
    body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True}
    streamed = server.stream("/v1/completions", **body)
    assert len(streamed) == 12
    assert "".join(event["choices"][0]["text"] for event in streamed) == expected
    whole = server.post("/v1/completions", **body).json()
    assert whole["choices"][0]["text"] == expected
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}


def test_without_a_tokenizer_ids_go_in_and_text_is_empty() -> None:
    with running(formula_engine()) as server:
        events = server.stream("/v1/completions", prompt=PROMPT, max_tokens=5, logprobs=0)
        assert ids_of(events) == formula_continuation(PROMPT, 5)
        assert [event["choices"][0]["text"] for event in events] == [""] * 5
        refused = server.post("/v1/completions", prompt="text", max_tokens=5)
        assert refused.status_code == 400
        assert "no tokenizer.json" in refused.json()["error"]["message"]


def test_text_and_its_ids_are_the_same_prompt(server: RunningServer) -> None:
    ids = server.post("/tokenize", prompt="Hello there").json()["tokens"]
    by_text = server.post("/v1/completions", prompt="Hello there", max_tokens=4).json()
    by_ids = server.post("/v1/completions", prompt=ids, max_tokens=4).json()
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["usage"]["prompt_tokens"] == len(ids)


def test_several_prompts_answer_under_their_own_index(server: RunningServer) -> None:
    prompts = [[5, 6, 7], [9, 9], [30] * 40]
    answer = server.post("/v1/completions", prompt=prompts, max_tokens=3, logprobs=0).json()
    alone = [
        server.post("/v1/completions", prompt=prompt, max_tokens=3, logprobs=0).json()
        for prompt in prompts
    ]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in answer["choices"]] == [
        one["choices"][0]["text"] for one in alone
    ]
    assert answer["usage"] == {
        "prompt_tokens": 45,
        "completion_tokens": 9,
        "total_tokens": 54,
    }
    streamed = server.stream("/v1/completions", prompt=prompts, max_tokens=3)
    for index, choice in enumerate(answer["choices"]):
        own = [e["choices"][0] for e in streamed if e["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert [part["finish_reason"] for part in own] == [None, None, "length"]


def test_the_end_token_ends_a_sequence_unless_it_is_ignored(server: RunningServer) -> None:
    # Found by formula: the first prompt whose continuation meets the end token.
    prompt = next(
        [token] * length
        for token in range(3, 512)
        for length in range(1, 5)
        if formula_continuation([token] * length, 1) == [1]
    )
    stopped = server.post("/v1/completions", prompt=prompt, max_tokens=4).json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == 1
    ignored = server.post("/v1/completions", prompt=prompt, max_tokens=4, ignore_eos=True).json()
    assert ignored["choices"][0]["finish_reason"] == "length"
    assert ignored["usage"]["completion_tokens"] == 4
    later = server.post("/v1/completions", prompt=prompt, max_tokens=4, min_tokens=2).json()
    assert later["usage"]["completion_tokens"] >= 2


def test_a_stop_text_ends_the_output_before_itself(server: RunningServer) -> None:
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True}
    full = server.post("/v1/completions", **body).json()["choices"][0]["text"]
    stop = full[20:23]
    cut = full[: full.index(stop)]
    streamed = server.stream("/v1/completions", **body, stop=[stop, "never\x00there"])
    assert "".join(event["choices"][0]["text"] for event in streamed) == cut
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(streamed) < 60
    server.wait_until(lambda: server.bridge.num_in_flight == 0)


def test_every_chunk_carries_the_usage_where_that_is_asked_for(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.stream("/v1/completions", prompt=PROMPT, max_tokens=3, stream_options=options)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


def test_max_completion_tokens_is_max_tokens(server: RunningServer) -> None:
    answer = server.post("/v1/completions", prompt=PROMPT, max_completion_tokens=2).json()
    assert answer["usage"]["completion_tokens"] == 2
    default = server.post("/v1/completions", prompt=PROMPT, ignore_eos=True, max_tokens=None)
    assert default.json()["usage"]["completion_tokens"] == 16


def test_a_seed_repeats_a_sample_and_another_seed_does_not(server: RunningServer) -> None:
    def sampled(seed: int) -> str:
        body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "temperature": 1.0}
        text: str = server.post("/v1/completions", **body, seed=seed).json()["choices"][0]["text"]
        return text

    assert sampled(3) == sampled(3)
    assert len({sampled(seed) for seed in range(4)}) == 4


def test_a_connection_sends_small_packets_at_once(checkpoint: Path) -> None:
    with running(formula_engine(checkpoint, step_s=0.05)) as server:
        body = {"prompt": PROMPT, "max_tokens": 10, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            connections = list(server.uvicorn.server_state.connections)
            sockets = [one.transport.get_extra_info("socket") for one in connections]
            flags = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets]
    assert flags
    assert all(flags)


def test_tokens_leave_as_they_are_made(checkpoint: Path) -> None:
    with running(formula_engine(checkpoint, step_s=0.05)) as server:
        arrivals = []
        body = {"prompt": PROMPT, "max_tokens": 6, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            for _ in response.iter_raw():
                arrivals.append(time.perf_counter())
    gaps = [late - early for early, late in pairwise(arrivals[:6])]
    # Five gaps of a 50 ms step each; a server that collects chunks would show gaps of zero.
    assert len(gaps) == 5
    assert min(gaps) > 0.02


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_requests_share_steps(checkpoint: Path, path: str) -> None:
    engine = formula_engine(checkpoint, step_s=0.01)
    with running(engine) as server, ThreadPool(4) as pool:
        body = {"prompt": PROMPT, "messages": [{"role": "user", "content": "Hi"}]}
        answers = pool.map(
            lambda _: server.post(path, **body, max_tokens=30, ignore_eos=True), range(4)
        )
        assert [answer.status_code for answer in answers] == [200] * 4
        widths = [len(plan.chunks) for plan in engine.executor.plans]  # type: ignore[attr-defined]
    assert max(widths) == 4
    assert len(widths) < 4 * 30
