"""To and from the result files of `vllm bench serve` (measurement.md §4), without loss.

Ours to theirs: one file a repeat; what their schema has no place for travels as one metadata
string. Theirs to ours: their lists become requests, each keeps the numbers it was read from, and
the rest of the file stays with the point, so that exporting again gives the same file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.core.latency import (
    LatencyStats,
    failure_of,
    latency_of,
    measure_requests,
    percentile_name,
)
from harness.core.record import strict_json
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import point_key
from harness.core.throughput import Slo, measure_throughput

__all__ = ["export_result", "export_sweep", "import_result", "import_sweep"]

_OURS = "neuron_harness"
_LISTS = (
    "input_lens",
    "output_lens",
    "start_times",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
)
# Absent, empty or one entry a request: only vLLM's own server fills them.
_SERVER_LISTS = ("server_queue_times", "server_ttfts")
_PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def export_result(
    payload: Mapping[str, Any],
    *,
    created: datetime,
    repeat: int | None = None,
    slo: Slo | None = None,
) -> dict[str, Any]:
    """One result file of a point.

    Args:
        payload: a SweepPoint as its record holds it.
        created: when it was measured.
        repeat: only this repeat's requests; None takes all.
    """
    config = payload["config"]
    imported = config.get("imported")
    requests = [
        request
        for request in payload["requests"]
        if repeat is None or request.get("repeat", 0) == repeat
    ]
    if imported is not None:
        return {**imported[str(repeat or 0)], **_imported_lists(requests)}
    ours = {name: value for name, value in payload.items() if name != "requests"}
    return {
        **_head(config, created),
        **_totals(requests, config, slo),
        **_summaries(requests),
        **_details(requests),
        **{name: [None] * len(requests) for name in _SERVER_LISTS},
        **_speculation(payload["counters"]),
        _OURS: strict_json({"point": ours, "requests": requests}),
    }


def import_result(file: Path) -> dict[str, Any]:
    """The point a result file describes, as a SweepPoint's payload.

    Raises:
        InputError: no such file, no JSON, or no per-request lists to read.
    """
    return import_runs([file])


def import_runs(files: Sequence[Path]) -> dict[str, Any]:
    """One point from the files of its repeats.

    Raises:
        InputError: as `import_result`; files of different points.
    """
    bodies = [_read(file) for file in files]
    if all(_OURS in body for body in bodies):
        return _own_point(files, bodies)
    requests = [
        {**request, "repeat": number}
        for number, (file, body) in enumerate(zip(files, bodies, strict=True))
        for request in _requests(file, body)
    ]
    first = bodies[0]
    config = {
        "mode": "online",
        "numerics": "served",
        "cp": 0,
        "ep": 0,
        "ops": ["served"],
        "attached": first.get("backend", "vllm"),
        "served_model": first.get("model_id"),
        "input_len": _common(first["input_lens"]),
        "output_len": _common(first["output_lens"]),
        "concurrency": first.get("max_concurrency") or len(first["input_lens"]),
        "imported": {
            str(number): {name: value for name, value in body.items() if name not in _LISTS}
            for number, body in enumerate(bodies)
        },
    }
    failures = [failure for request in requests if (failure := failure_of(request))]
    point = SweepPoint(
        key=point_key(config),
        config=config,
        status=PointStatus.FAILED if failures else PointStatus.OK,
        message=f"{len(failures)} of {len(requests)} requests failed: {failures[0]}"
        if failures
        else "",
        requests=tuple(requests),
    )
    plain: dict[str, Any] = json.loads(strict_json(point))
    return plain


def export_sweep(
    payloads: Iterable[Mapping[str, Any]], directory: Path, *, created: datetime
) -> list[Path]:
    """`<directory>/<point>/run=N.json`, `summary.json` and `summary.csv`; the files written."""
    written = []
    for payload in payloads:
        if not payload["requests"]:
            continue
        place = directory / _point_name(payload)
        place.mkdir(parents=True, exist_ok=True)
        repeats = sorted({request.get("repeat", 0) for request in payload["requests"]})
        runs = [export_result(payload, created=created, repeat=repeat) for repeat in repeats]
        for repeat, body in zip(repeats, runs, strict=True):
            written.append(place / f"run={repeat}.json")
            written[-1].write_text(_text(body), encoding="utf-8")
        scalars = [
            {"run_number": repeat}
            | {k: v for k, v in body.items() if k not in (*_LISTS, *_SERVER_LISTS, _OURS)}
            for repeat, body in zip(repeats, runs, strict=True)
        ]
        written += [place / "summary.json", place / "summary.csv"]
        written[-2].write_text(_text(scalars), encoding="utf-8")
        with written[-1].open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(scalars[0]))
            writer.writeheader()
            writer.writerows(scalars)
    return written


def import_sweep(directory: Path) -> list[dict[str, Any]]:
    """Every point below a sweep's directory, in the order of their names.

    Raises:
        InputError: no result file in it, or one that cannot be read.
    """
    by_place: dict[Path, list[Path]] = {}
    for file in sorted(directory.rglob("run=*.json"), key=_run_order):
        by_place.setdefault(file.parent, []).append(file)
    if not by_place:
        raise InputError(directory, "run=N.json", "absent", "give the directory of a sweep")
    return [import_runs(files) for files in by_place.values()]


def _run_order(file: Path) -> tuple[Path, int, str]:
    number = file.stem.removeprefix("run=")
    return file.parent, int(number) if number.isdigit() else -1, number


def _head(config: Mapping[str, Any], created: datetime) -> dict[str, Any]:
    rate = config.get("request_rate") or "inf"
    return {
        "date": created.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai" if config.get("mode") == "online" else "neuron-harness offline",
        "label": None,
        "model_id": config.get("served_model") or config.get("checkpoint_id"),
        "tokenizer_id": config.get("served_model") or config.get("checkpoint_id"),
        "request_rate": rate,
        "burstiness": 1.0 if config.get("arrival", "poisson") == "poisson" else "inf",
        "max_concurrency": config.get("concurrency"),
    }


def _totals(
    requests: Sequence[Mapping[str, Any]], config: Mapping[str, Any], slo: Slo | None
) -> dict[str, Any]:
    found = measure_throughput(requests, concurrency=config.get("concurrency") or 0, slo=slo)
    samples = measure_requests(requests)
    return {
        "num_prompts": len(requests),
        "duration": found.duration_s,
        "completed": found.num_completed,
        "failed": found.num_failed,
        "total_input_tokens": found.num_input_tokens,
        "total_output_tokens": found.num_output_tokens,
        "request_throughput": found.request_per_s,
        "request_goodput": found.good_per_s,
        "output_throughput": found.output_per_s,
        "total_token_throughput": found.total_per_s,
        "latencies": [value / 1e3 for value in samples.e2el_ms],
        "queue_times": [value / 1e3 for value in samples.queue_ms],
        "max_output_tokens_per_s": found.peak_output_per_s,
        "max_concurrent_requests": found.peak_concurrency,
        "rtfx": None,
    }


def _summaries(requests: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    samples = measure_requests(requests)
    summary: dict[str, float | None] = {}
    for name, values in (
        ("ttft", samples.ttft_ms),
        ("tpot", samples.tpot_ms),
        ("itl", samples.itl_ms),
        ("e2el", samples.e2el_ms),
    ):
        stats = LatencyStats.of(values, _PERCENTILES)
        summary |= {
            f"mean_{name}_ms": None if stats is None else stats.mean_ms,
            f"median_{name}_ms": None if stats is None else stats.median_ms,
            f"std_{name}_ms": None if stats is None else stats.std_ms,
        }
        for rank in _PERCENTILES:
            place = percentile_name(rank)
            summary[f"{place}_{name}_ms"] = None if stats is None else stats.percentiles[place]
    return summary


def _details(requests: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    for request in requests:
        failure = failure_of(request)
        latency = latency_of(request) if failure is None else None
        lists["input_lens"].append(request.get("prompt_len") or request["prompt_len_requested"])
        lists["output_lens"].append(latency.num_tokens if latency else 0)
        lists["start_times"].append(request["t_send_ns"] / 1e9)
        lists["ttfts"].append(latency.ttft_ms / 1e3 if latency else 0.0)
        lists["itls"].append([gap / 1e3 for gap in latency.itl_ms] if latency else [])
        lists["generated_texts"].append(request.get("text", ""))
        lists["errors"].append(failure or "")
    return lists


def _speculation(counters: Mapping[str, float]) -> dict[str, Any]:
    """Acceptance under vLLM's names; nothing without drafts."""
    drafts, draft_tokens = counters.get("num_drafts"), counters.get("num_draft_tokens")
    if not drafts or not draft_tokens:
        return {}
    accepted = counters["num_accepted_tokens"]
    by_place = sorted(
        (int(name.removeprefix("accepted_at_")), count)
        for name, count in counters.items()
        if name.startswith("accepted_at_")
    )
    return {
        "spec_decode_acceptance_rate": 100 * accepted / draft_tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(draft_tokens),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": [count / drafts for _, count in by_place],
    }


def _imported_lists(requests: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {
        name: [request["imported"][name] for request in requests]
        for name in _LISTS
        if any(name in request["imported"] for request in requests)
    }


def _requests(file: Path, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One record a request, its stamps added up from the start, the TTFT and the gaps."""
    needed = ("input_lens", "output_lens", "ttfts", "itls")
    for name in needed:
        if not isinstance(body.get(name), list):
            remedy = "per-request lists are needed: run the benchmark with --save-detailed"
            raise InputError(file, name, body.get(name), remedy)
    count = len(body["input_lens"])
    present = [name for name in _LISTS if isinstance(body.get(name), list)]
    for name in present:
        if len(body[name]) != count:
            raise InputError(file, name, len(body[name]), f"must hold {count} entries")
    return [_request({name: body[name][place] for name in present}) for place in range(count)]


def _request(values: dict[str, Any]) -> dict[str, Any]:
    start_s = values.get("start_times") or 0.0
    num_tokens, gaps = values["output_lens"], values["itls"]
    send_ns = round(start_s * 1e9)
    stamp_s, token_ns = values["ttfts"], []
    if num_tokens:
        for gap in (0.0, *gaps):
            stamp_s += gap
            token_ns.append(send_ns + round(stamp_s * 1e9))
    record: dict[str, Any] = {
        "t_send_ns": send_ns,
        "token_ns": token_ns,
        "prompt_len": values["input_lens"],
        "num_tokens": num_tokens,
        "count_source": "usage",
        "finish_reason": "length" if num_tokens else None,
        "text": values.get("generated_texts", ""),
        "imported": values,
    }
    if values.get("errors"):
        record["error"] = values["errors"]
    return record


def _own_point(files: Sequence[Path], bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [json.loads(body[_OURS]) for body in bodies]
    for file, part in zip(files, parts, strict=True):
        if part["point"] != parts[0]["point"]:
            raise InputError(file, _OURS, part["point"]["key"], "files of one point lie together")
    requests = [request for part in parts for request in part["requests"]]
    point: dict[str, Any] = {**parts[0]["point"], "requests": requests}
    return point


def _read(file: Path) -> dict[str, Any]:
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            file, "content", str(error), "give a result of vllm bench serve"
        ) from error
    if not isinstance(body, dict):
        raise InputError(file, "content", type(body).__name__, "a result is one JSON object")
    return body


def _common(values: Sequence[int]) -> int:
    """The one length there is, else the mean rounded."""
    return values[0] if len(set(values)) == 1 else round(sum(values) / max(1, len(values)))


def _point_name(payload: Mapping[str, Any]) -> str:
    config = payload["config"]
    parts = [f"in={config['input_len']}", f"out={config['output_len']}"]
    parts += [
        f"{name}={config[name]}"
        for name in ("cp", "concurrency", "request_rate")
        if config.get(name)
    ]
    return "-".join([*parts, payload["key"]])


def _text(body: Any) -> str:
    return json.dumps(body, allow_nan=False, ensure_ascii=False, indent=1) + "\n"
