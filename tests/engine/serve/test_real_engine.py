"""The server around the real engine: ranks, drafts, and the same tokens as offline."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.llm import LLM
from tests.engine.oracle import settings, vectors
from tests.engine.serve.running import RunningServer, running

PREFIX = "vllm:spec_decode_"


def served_ids(server: RunningServer, prompt: list[int], count: int) -> list[int]:
    body = {"prompt": prompt, "max_tokens": count, "ignore_eos": True, "logprobs": 0}
    events = server.stream("/v1/completions", **body)
    tokens = [event["choices"][0]["logprobs"]["tokens"] for event in events]
    assert all(len(one) == 1 for one in tokens)
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (count - 1)
    return [int(one[0].removeprefix("token_id:")) for one in tokens]


def official(name: str) -> tuple[list[int], list[int]]:
    arrays = vectors(name, "exact")
    return arrays["ids"].tolist(), arrays["generated"].tolist()


def test_the_official_codes_continuation_comes_out_of_the_server() -> None:
    prompt, generated = official("steady_mtp")
    with running(LLM(settings())) as server:
        assert served_ids(server, prompt, len(generated)) == generated


def test_drafts_change_no_token_and_show_in_the_metrics() -> None:
    prompt, generated = official("steady_mtp")
    with running(LLM(settings(speculative="dspark"))) as server:
        assert served_ids(server, prompt, len(generated)) == generated
        server.wait_until(lambda: server.bridge.num_in_flight == 0)
        drafts = server.metric(PREFIX + "num_drafts_total")
        accepted = server.metric(PREFIX + "num_accepted_tokens_total")
        first = server.metric(PREFIX + 'num_accepted_tokens_per_pos_total{position="0"}')
        assert 0 < drafts < len(generated)
        assert 0 < first <= drafts
        # A verified block gives its accepted drafts and one token of the target; the prompt's step
        # gives the first token, and a last step may have no room for a draft.
        assert len(generated) - (1 + drafts + accepted) in (0, 1)
        assert server.metric(PREFIX + "num_draft_tokens_total") >= accepted


def test_a_sampled_request_beside_drafted_ones_changes_nothing() -> None:
    prompt, generated = official("steady_mtp")
    with running(LLM(settings(speculative="dspark"))) as server:
        sampled: dict[str, Any] = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
        first = server.post("/v1/completions", prompt=prompt, max_tokens=6, logprobs=1, **sampled)
        again = server.post("/v1/completions", prompt=prompt, max_tokens=6, logprobs=1, **sampled)
        assert first.json()["choices"] == again.json()["choices"]
        assert served_ids(server, prompt, len(generated)) == generated


@pytest.mark.slow
def test_two_ranks_serve_the_tokens_of_one() -> None:
    prompt, generated = official("steady_mtp")
    with running(LLM(settings(cp=2))) as server:
        assert served_ids(server, prompt, len(generated)) == generated


@pytest.mark.slow
def test_batches_over_one_expert_group_serve_the_same_tokens_side_by_side() -> None:
    prompt, generated = official("steady_mtp")
    body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "logprobs": 0}
    with running(LLM(settings(cp=1, ep=2))) as server:
        assert len(server.bridge.engine.scheduler.schedulers) == 2
        num_slots = server.bridge.engine.scheduler.pool.num_free_slots
        assert server.bridge.capacity == num_slots + 256
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: server.post("/v1/completions", **body), range(4)))
        for answer in answers:
            tokens = answer.json()["choices"][0]["logprobs"]["tokens"]
            assert [int(one.removeprefix("token_id:")) for one in tokens] == generated[:8]
        server.wait_until(lambda: server.bridge.num_in_flight == 0)
        assert server.bridge.engine.scheduler.pool.num_free_slots == num_slots
        assert server.metric("neuron_harness_kv_pages_used") == 0


@pytest.mark.slow
def test_a_killed_rank_ends_the_calls_with_its_name() -> None:
    engine = LLM(settings(cp=2, time_limit_s=20.0))
    with running(engine) as server:
        process = engine.executor._processes[1]  # type: ignore[attr-defined]
        body = {"prompt": [3, 4, 5], "max_tokens": 100, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            parts = stream.iter_text()
            first = next(parts)
            process.kill()
            rest = "".join(parts)
        assert first.startswith("data: ")
        assert "rank 1 died with signal 9" in rest
        assert "[DONE]" not in rest
        assert server.http.get("/health").status_code == 503
