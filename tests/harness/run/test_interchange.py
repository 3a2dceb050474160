"""Result files of `vllm bench serve`: the fields of measurement.md §4, and nothing lost."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.errors import InputError
from harness.core.latency import measure_requests
from harness.core.record import strict_json
from harness.core.results import SweepPoint
from harness.run.interchange import export_result, export_sweep, import_result, import_sweep

CREATED = datetime(2026, 11, 30, 20, 5, 7, tzinfo=UTC)
ALWAYS = [
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "latencies",
    "queue_times",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
]
DETAILS = [
    "input_lens",
    "output_lens",
    "start_times",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
    "server_queue_times",
    "server_ttfts",
]


def requests(num_repeats: int = 2, per_repeat: int = 3) -> list[dict[str, Any]]:
    source = np.random.default_rng(5)
    made = []
    for number in range(num_repeats * per_repeat):
        send = 10**9 + number * 7_000_001
        stamps = send + np.cumsum(source.integers(1_000_000, 9_000_000, 5))
        made.append(
            {
                "t_send_ns": send,
                "t_last_read_ns": int(stamps[-1]) + 333,
                "token_ns": stamps.tolist(),
                "prompt_len": 16,
                "prompt_len_requested": 16,
                "num_tokens": 5,
                "num_requested": 5,
                "count_source": "usage",
                "finish_reason": "length",
                "text": f"text {number}\n",
                "repeat": number // per_repeat,
            }
        )
    made[-1]["error"] = "HTTP 500: broken"
    return made


def payload() -> dict[str, Any]:
    point = SweepPoint(
        key="0123456789abcdef",
        config={
            "input_len": 16,
            "output_len": 5,
            "cp": 2,
            "concurrency": 3,
            "request_rate": 2.5,
            "arrival": "poisson",
            "numerics": "fast",
            "checkpoint_id": "abc",
            "mode": "online",
        },
        status="FAILED",
        message="1 of 6 requests failed",
        requests=tuple(requests()),
        warmups=({"t_send_ns": 1},),
        counters={"num_drafts": 4.0, "num_draft_tokens": 12.0, "num_accepted_tokens": 7.0}
        | {"accepted_at_0": 4.0, "accepted_at_1": 2.0, "accepted_at_2": 1.0},
    )
    plain: dict[str, Any] = json.loads(strict_json(point))
    return plain


def test_an_export_has_every_field_in_vllms_units() -> None:
    body = export_result(payload(), created=CREATED)
    assert set(ALWAYS) <= set(body)
    assert set(DETAILS) <= set(body)
    for name in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99"):
            assert isinstance(body[f"{statistic}_{name}_ms"], float)
    json.dumps(body, allow_nan=False)
    assert body["date"] == "20261130-200507"
    assert body["request_rate"] == 2.5
    assert body["request_goodput"] is None
    assert (body["completed"], body["failed"], body["num_prompts"]) == (5, 1, 6)
    assert body["total_output_tokens"] == 25
    assert body["mean_ttft_ms"] == pytest.approx(1e3 * np.mean(body["ttfts"][:5]))
    assert body["p99_ttft_ms"] == pytest.approx(1e3 * np.percentile(body["ttfts"][:5], 99))
    gaps = [gap for one in body["itls"] for gap in one]
    assert len(gaps) == 5 * 4
    assert body["std_itl_ms"] == pytest.approx(1e3 * np.std(gaps))
    assert body["errors"] == [""] * 5 + ["HTTP 500: broken"]
    first, last = payload()["requests"][0], payload()["requests"][-1]
    duration_s = (last["t_last_read_ns"] - first["t_send_ns"]) / 1e9
    assert body["duration"] == pytest.approx(duration_s)
    assert body["output_throughput"] == pytest.approx(25 / duration_s)


def test_acceptance_stands_under_vllms_names() -> None:
    body = export_result(payload(), created=CREATED)
    assert body["spec_decode_acceptance_rate"] == pytest.approx(100 * 7 / 12)
    assert body["spec_decode_acceptance_length"] == pytest.approx(1 + 7 / 4)
    assert body["spec_decode_per_position_acceptance_rates"] == [1.0, 0.5, 0.25]


def test_a_closed_loop_has_the_rate_inf() -> None:
    one = payload()
    del one["config"]["request_rate"]
    assert export_result(one, created=CREATED)["request_rate"] == "inf"


def test_our_points_come_back_whole(tmp_path: Path) -> None:
    one = payload()
    files = export_sweep([one], tmp_path, created=CREATED)
    assert [file.name for file in files] == [
        "run=0.json",
        "run=1.json",
        "summary.json",
        "summary.csv",
    ]
    assert import_sweep(tmp_path) == [one]
    summary = json.loads(files[2].read_text())
    assert [row["run_number"] for row in summary] == [0, 1]
    with files[3].open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["median_ttft_ms"]) for row in rows] == [
        row["median_ttft_ms"] for row in summary
    ]


def vllm_file(place: Path, name: str = "run=0.json", **changes: Any) -> Path:
    """A result as vLLM writes it, its floats as awkward as real ones."""
    source = np.random.default_rng(9)
    ttfts = source.uniform(0.1, 0.3, 4).tolist()
    itls = source.uniform(0.01, 0.02, (4, 7)).tolist()
    body = {
        "date": "20261001-101112",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "deepseek",
        "tokenizer_id": "deepseek",
        "num_prompts": 4,
        "my_metadata": "kept",
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 2,
        "duration": 1.2345678901234567,
        "completed": 4,
        "failed": 0,
        "request_goodput": None,
        "rtfx": 0.0,
        "mean_ttft_ms": float(np.mean(ttfts)) * 1e3,
        "p99.9_ttft_ms": 299.9,
        "input_lens": [512] * 4,
        "output_lens": [8] * 4,
        "start_times": (1e5 + source.uniform(0, 1, 4)).tolist(),
        "ttfts": ttfts,
        "itls": itls,
        "generated_texts": ["a", "b\n", "ü", ""],
        "errors": [""] * 4,
        **changes,
    }
    place.mkdir(exist_ok=True)
    file = place / name
    file.write_text(json.dumps(body))
    return file


def test_a_vllm_file_survives_import_and_export_number_for_number(tmp_path: Path) -> None:
    file = vllm_file(tmp_path / "point")
    point = import_result(file)
    assert point["status"] == "OK"
    again = export_result(point, created=CREATED, repeat=0)
    assert again == json.loads(file.read_text())


def test_imported_requests_give_the_files_own_statistics(tmp_path: Path) -> None:
    file = vllm_file(tmp_path / "point")
    body = json.loads(file.read_text())
    samples = measure_requests(import_result(file)["requests"])
    assert np.mean(samples.ttft_ms) == pytest.approx(body["mean_ttft_ms"], abs=1e-5)
    expected = [1e3 * sum(gaps) / 7 for gaps in body["itls"]]
    assert samples.tpot_ms == pytest.approx(expected, abs=1e-5)


def test_repeats_of_a_point_become_one_point_and_points_stay_apart(tmp_path: Path) -> None:
    for number in (0, 2, 10):
        vllm_file(tmp_path / "a", f"run={number}.json")
    vllm_file(tmp_path / "b", max_concurrency=4)
    first, second = import_sweep(tmp_path)
    assert [request["repeat"] for request in first["requests"]] == [0] * 4 + [1] * 4 + [2] * 4
    assert len(second["requests"]) == 4
    assert first["key"] != second["key"]
    assert first["config"]["input_len"] == 512


def test_failed_requests_stay_failed(tmp_path: Path) -> None:
    file = vllm_file(
        tmp_path / "point",
        output_lens=[8, 8, 8, 0],
        errors=["", "", "", "Connection reset"],
        completed=3,
    )
    point = import_result(file)
    assert point["status"] == "FAILED"
    assert "Connection reset" in point["message"]
    assert measure_requests(point["requests"]).num_completed == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ttfts": None}, "--save-detailed"),
        ({"errors": [""]}, "must hold 4 entries"),
    ],
)
def test_a_file_without_its_lists_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        import_result(vllm_file(tmp_path / "point", **changes))


def test_what_is_no_result_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run=N\.json"):
        import_sweep(tmp_path)
    for content in ("{", "[1]"):
        (tmp_path / "run=0.json").write_text(content)
        with pytest.raises(InputError):
            import_sweep(tmp_path)


def test_a_file_that_vllm_itself_wrote_survives_and_gives_its_own_figures() -> None:
    """Recorded with `vllm bench serve` 0.33.0 against this project's server."""
    file = Path(__file__).parents[2] / "data" / "vllm_bench_serve" / "run=0.json"
    body = json.loads(file.read_text())
    (point,) = import_sweep(file.parent)
    assert point["status"] == "OK"
    assert export_result(point, created=CREATED, repeat=0) == body
    samples = measure_requests(point["requests"])
    assert np.median(samples.ttft_ms) == pytest.approx(body["median_ttft_ms"], abs=1e-5)
    assert np.mean(samples.tpot_ms) == pytest.approx(body["mean_tpot_ms"], abs=1e-5)
    assert np.std(samples.itl_ms) == pytest.approx(body["std_itl_ms"], abs=1e-5)
    assert set(ALWAYS) <= set(body)
