"""What the server refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.serve.running import RunningServer

PROMPT = [7, 8, 9]


@pytest.mark.parametrize(
    ("changes", "status", "param", "message"),
    [
        ({"max_tokens": 0}, 400, "max_tokens", "at least 1, it is 0"),
        ({"max_tokens": -3}, 400, "max_tokens", "at least 1"),
        ({"max_tokens": "8"}, 400, "max_tokens", "must be an integer"),
        ({"max_tokens": True}, 400, "max_tokens", "must be an integer"),
        ({"max_tokens": 126}, 400, "max_tokens", "context holds 128"),
        ({"prompt": [5] * 128}, 400, "prompt", "context holds 128"),
        ({"prompt": []}, 400, "prompt", "prompt must be"),
        ({"prompt": ""}, 400, "prompt", "prompt is empty"),
        ({"prompt": None}, 400, "prompt", "prompt must be"),
        ({"prompt": [[]]}, 400, "prompt", "prompt is empty"),
        ({"prompt": [3, "a"]}, 400, "prompt", "no token id"),
        ({"prompt": [3, 512]}, 400, "prompt", "ids lie in 0..511"),
        ({"prompt": [3, -1]}, 400, "prompt", "ids lie in 0..511"),
        ({"prompt": [[3], [True]]}, 400, "prompt", "no token id"),
        ({"model": "gpt-9"}, 404, "model", "'gpt-9' does not exist"),
        ({"model": 3}, 400, "model", "must be a string"),
        ({"temperature": "hot"}, 400, "temperature", "must be a number"),
        ({"temperature": -1}, 400, "temperature", "must lie in"),
        ({"top_p": 0}, 400, "top_p", "must lie in"),
        ({"stream": "yes"}, 400, "stream", "true or false"),
        ({"stream_options": []}, 400, "stream_options", "must be an object"),
        ({"n": 2}, 400, "n", "not supported"),
        ({"repetition_penalty": 1.2}, 400, "repetition_penalty", "not supported"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty", "not supported"),
        ({"logit_bias": {"5": 100}}, 400, "logit_bias", "not supported"),
        ({"logprobs": 21}, 400, "logprobs", "at most 20"),
        ({"logprobs": True}, 400, "logprobs", "must be an integer"),
        ({"stop": [""]}, 400, "stop", "none of them empty"),
        ({"stop": [1]}, 400, "stop", "list of strings"),
        ({"echo": True, "stream": True}, 400, "echo", "cannot be streamed"),
        ({"prompt": [[3]] * 2000}, 400, "prompt", "2000 prompts"),
        ({"prompt": [[3]] * 500}, 400, "prompt", "this server holds"),
    ],
)
def test_a_bad_field_is_named(
    server: RunningServer, changes: dict[str, Any], status: int, param: str, message: str
) -> None:
    answer = server.post("/v1/completions", **{"prompt": PROMPT, "max_tokens": 4, **changes})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert message in error["message"]
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert error["type"] == kind


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("Hi", "at least one message"),
        (["Hi"], "messages[0] must be an object"),
        ([{"role": "robot", "content": "Hi"}], "role is 'robot'"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
    ],
)
def test_a_bad_message_is_named(server: RunningServer, messages: Any, message: str) -> None:
    answer = server.post("/v1/chat/completions", messages=messages)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"[" * 100000])
def test_a_body_that_is_no_object_is_a_400(server: RunningServer, body: bytes) -> None:
    answer = server.http.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_paths_and_methods_answer_in_the_same_shape(server: RunningServer) -> None:
    missing = server.http.get("/v2/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "not_found_error"
    wrong = server.http.get("/v1/completions")
    assert wrong.status_code == 405
    assert "Method Not Allowed" in wrong.json()["error"]["message"]


def test_a_stream_that_cannot_start_is_a_plain_error(server: RunningServer) -> None:
    answer = server.post("/v1/completions", prompt=[3, 999], max_tokens=2, stream=True)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("tokens", [None, "x", [1, "x"], [512], [True]])
def test_detokenize_refuses_what_are_no_ids(server: RunningServer, tokens: Any) -> None:
    assert server.post("/detokenize", tokens=tokens).status_code == 400
