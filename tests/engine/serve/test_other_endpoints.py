"""Models, health, tokens and the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.serve.app import ServeOptions
from tests.engine.serve.running import RunningServer, running
from tests.fakes.formula_engine import formula_engine


def test_models_say_what_the_specification_lists(server: RunningServer, checkpoint: Path) -> None:
    (model,) = server.http.get("/v1/models").json()["data"]
    assert set(model) == {"id", "object", "created", "owned_by", "root", "max_model_len"}
    assert model["id"] == "formula"
    assert model["object"] == "model"
    assert model["root"] == str(checkpoint)
    assert model["max_model_len"] == 128
    assert server.http.get("/health").status_code == 200


def test_without_a_name_the_path_and_its_last_part_are_the_model(checkpoint: Path) -> None:
    with running(formula_engine(checkpoint)) as server:
        names = [model["id"] for model in server.http.get("/v1/models").json()["data"]]
        assert names == [str(checkpoint), checkpoint.name]
        for name in names:
            answer = server.post("/v1/completions", model=name, prompt=[3], max_tokens=1)
            assert answer.json()["model"] == name


def test_tokens_and_text_go_both_ways(server: RunningServer) -> None:
    for text in ("Hello wörld 🙂", " two  spaces\n", "<think>x</think>"):
        answer = server.post("/tokenize", prompt=text, add_special_tokens=False).json()
        assert answer["count"] == len(answer["tokens"])
        assert server.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}
    info = server.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<｜end▁of▁sentence｜>"
    assert info["vocab_size"] == 512


def test_metrics_have_the_names_that_vllms_client_reads(server: RunningServer) -> None:
    text = server.http.get("/metrics").text
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f"\nvllm:spec_decode_{name}_total 0.0\n" in text
    assert "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter" in text


def test_metrics_count_what_happened(checkpoint: Path) -> None:
    options = ServeOptions(model_names=("formula",))
    engine = formula_engine(checkpoint, counters={"collectives": 4.0, "collectives_per_layer": 2.0})
    with running(engine, options) as server:
        for _ in range(3):
            server.post("/v1/completions", prompt=[7, 8], max_tokens=5, ignore_eos=True)
        server.post("/v1/completions", prompt=[7, 8], max_tokens=0)
        prefix = "neuron_harness_"
        completions = '{endpoint="/v1/completions",status="%s"}'
        expected = {
            "prompt_tokens_total": 6,
            "generation_tokens_total": 15,
            "requests_total" + completions % 200: 3,
            "requests_total" + completions % 400: 1,
            'sequences_total{reason="length"}': 3,
            "time_to_first_token_seconds_count": 3,
            "time_per_output_token_seconds_count": 3,
            'time_to_first_token_seconds_bucket{le="+Inf"}': 3,
            "kv_pages": 128,
            "kv_pages_used": 0,
            "sequences_running": 0,
            "sequences_waiting": 0,
            "steps_total": 15,
            'engine_counts_total{name="collectives"}': 60,
        }
        server.wait_until(lambda: server.metric(prefix + "sequences_waiting") == 0)
        assert {name: server.metric(prefix + name) for name in expected} == expected
        assert "per_layer" not in server.http.get("/metrics").text


def test_requests_sent_back_for_want_of_pages_are_counted(checkpoint: Path) -> None:
    with running(formula_engine(checkpoint, num_kv_blocks=5)) as server:
        prompts = [[5] * 8, [6] * 8]
        answer = server.post("/v1/completions", prompt=prompts, max_tokens=24, ignore_eos=True)
        assert answer.json()["usage"]["completion_tokens"] == 48
        assert server.metric("vllm:num_preemptions_total") == 1
        # Its pages came back: a request that needs the whole pool gets it.
        whole = server.post("/v1/completions", prompt=[5] * 8, max_tokens=32, ignore_eos=True)
        assert whole.json()["usage"]["completion_tokens"] == 32


def test_a_snapshot_adds_up_the_drafts_of_running_and_ended_requests() -> None:
    from engine.schedule.request import Request
    from engine.serve.snapshot import SnapshotKeeper

    with formula_engine() as engine:
        keeper = SnapshotKeeper(engine.scheduler)
        ended = Request(1, 1, [3], 1, True, False)
        ended.acceptance.note(3, 2)
        keeper.count_ended(ended)
        running_request = Request(2, 1, [3], 1, True, False)
        running_request.acceptance.note(5, 1)
        keeper.take([running_request])
        keeper.take([running_request])
    assert keeper.last.num_drafts == 2
    assert keeper.last.num_draft_tokens == 8
    assert keeper.last.accepted_by_place == (2, 1, 0, 0, 0)
    assert keeper.last.num_steps == 2


def test_accepted_drafts_are_shown_by_position() -> None:
    from engine.serve.metrics import ServerMetrics
    from engine.serve.snapshot import EngineSnapshot

    state = EngineSnapshot(num_drafts=4, num_draft_tokens=12, accepted_by_place=(4, 2, 1))
    text = ServerMetrics(lambda: state, lambda: 0, dict).render().decode()
    assert "vllm:spec_decode_num_accepted_tokens_total 7.0" in text
    samples = [
        line for line in text.splitlines() if line.startswith("vllm:spec_decode_num_accepted_tok")
    ]
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2.0' in samples


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/tokenizer_info"])
def test_reading_endpoints_answer_while_a_request_runs(checkpoint: Path, path: str) -> None:
    with running(formula_engine(checkpoint, step_s=0.02)) as server:
        body = {"prompt": [3], "max_tokens": 50, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_raw())
            assert server.http.get(path).status_code == 200
