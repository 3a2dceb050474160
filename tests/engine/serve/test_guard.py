"""Keys, sizes, request ids and what the log says."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

import httpx
import pytest

from engine.serve.app import ServeOptions
from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_engine

BODY = {"prompt": [401, 402, 403], "max_tokens": 2}


def test_a_key_is_asked_of_everybody_but_the_probe(checkpoint: Path) -> None:
    with running(formula_engine(checkpoint), ServeOptions(api_key="secret-ü")) as server:
        key = "secret-ü".encode()
        for headers, status in (
            ({}, 401),
            ({"authorization": b"Bearer secret"}, 401),
            ({"authorization": b"Basic " + key}, 401),
            ({"authorization": b"Bearer " + key + b"x"}, 401),
            ({"authorization": b"Bearer " + key}, 200),
        ):
            answer = server.http.post("/v1/completions", json=BODY, headers=headers)
            assert answer.status_code == status
            assert server.http.get("/metrics", headers=headers).status_code == status
        assert server.http.get("/health").status_code == 200
        refused = server.http.get("/v1/models").json()["error"]
        assert refused["type"] == "authentication_error"
        assert refused["code"] == "invalid_api_key"
        assert "secret" not in refused["message"]


def test_keys_are_compared_whole_whatever_their_length(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return given == known

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with running(formula_engine(checkpoint), ServeOptions(api_key="secret")) as server:
        for key in ("x", "s", "secreT", "secret" * 9):
            headers = {"authorization": f"Bearer {key}"}
            assert server.http.get("/v1/models", headers=headers).status_code == 401
    assert len(compared) == 4
    assert {len(one) for pair in compared for one in pair} == {32}


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_past_the_limit_is_refused(checkpoint: Path, announced: bool) -> None:
    options = ServeOptions(max_body_bytes=1000)
    with running(formula_engine(checkpoint), options) as server:
        content = b'{"prompt": [3], "max_tokens": 1, "user": "%s"}' % (b"x" * 1000)
        parts = content if announced else iter([content[:600], content[600:]])
        answer = server.http.post("/v1/completions", content=parts)
        assert answer.status_code == 413
        assert "larger than 1000 bytes" in answer.json()["error"]["message"]
        assert server.post("/v1/completions", **BODY).status_code == 200


def test_request_ids_are_taken_over_where_harmless(server: RunningServer) -> None:
    ids = {
        given: server.http.get("/health", headers={"x-request-id": given}).headers["x-request-id"]
        for given in ("abc-1.2_3", "a b", "x" * 65)
    }
    assert ids["abc-1.2_3"] == "abc-1.2_3"
    assert len(ids["a b"]) == len(ids["x" * 65]) == 16
    assert ids["a b"] != ids["x" * 65]


@pytest.mark.parametrize("logs_prompts", [False, True])
def test_the_log_names_the_request_and_shows_prompts_only_when_told(
    checkpoint: Path, caplog: pytest.LogCaptureFixture, logs_prompts: bool
) -> None:
    caplog.set_level(logging.INFO, logger="neuron_harness.serve")
    options = ServeOptions(logs_prompts=logs_prompts)
    with running(formula_engine(checkpoint), options) as server:
        header = {"x-request-id": "req-77"}
        server.http.post("/v1/completions", json=BODY, headers=header)
        server.http.post("/v1/completions", json={**BODY, "prompt": "very private"})
        server.wait_until(lambda: caplog.text.count("path=/v1/completions") == 2)
    lines = [record.getMessage() for record in caplog.records]
    first = next(line for line in lines if "req-77" in line)
    assert first.startswith("request_id=req-77 method=POST path=/v1/completions status=200")
    assert "prompt_tokens=3" in first
    assert ("[[401, 402, 403]]" in first) is logs_prompts
    assert "private" not in caplog.text


def test_an_answer_is_not_compressed(server: RunningServer) -> None:
    body = {**BODY, "stream": True}
    answer = httpx.post(
        f"{server.url}/v1/completions",
        json=body,
        headers={"accept-encoding": "gzip, br"},
        trust_env=False,
    )
    assert "content-encoding" not in answer.headers
