"""The sweep of the sample run: completed, failed, crashed and pruned points with raw stamps."""

from __future__ import annotations

import random
from typing import Any

from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import point_key
from tests.reports.sample_names import MARKUP


def requests_of(
    rng: random.Random, count: int, input_len: int, ttft_ms: float, tpot_ms: float
) -> tuple[dict[str, Any], ...]:
    """Completed requests one after the other, with raw stamps."""
    requests: list[dict[str, Any]] = []
    for _ in range(count):
        send = requests[-1]["token_ns"][-1] + 1000 if requests else rng.randrange(10**9)
        requests.append(_request(rng, send, input_len, ttft_ms, tpot_ms))
    return tuple(requests)


def _request(
    rng: random.Random, send: int, input_len: int, ttft_ms: float, tpot_ms: float
) -> dict[str, Any]:
    first = send + int(ttft_ms * 1e6 * rng.uniform(0.97, 1.08))
    stamps = [first]
    for _ in range(15):
        stamps.append(stamps[-1] + int(tpot_ms * 1e6 * rng.uniform(0.93, 1.12)))
    return {
        "t_send_ns": send,
        "token_ns": stamps,
        "prompt_len": input_len,
        "num_tokens": len(stamps),
        "count_source": "chunks",
        "finish_reason": "length",
        "bucket": 128,
        "padding_share": 0.25,
    }


def sweep_config(input_len: int, cp: int, **more: Any) -> dict[str, Any]:
    """The configuration of one cell of the sample matrix."""
    return {
        "input_len": input_len,
        "output_len": 16,
        "cp": cp,
        "ep": 0,
        "concurrency": 1,
        "numerics": "fast",
        "ops": ["references.op_table:TABLE"],
        "checkpoint_id": "tiny-A",
        "seed": 0,
        **more,
    }


def sweep_points(rng: random.Random) -> list[SweepPoint]:
    """4 input lengths × cp 1, 2, 4: one failed, one crashed, the longest pruned at cp=4."""
    points = []
    for cp in (1, 2, 4):
        for input_len in (64, 128, 256, 512):
            config = sweep_config(input_len, cp)
            status, message = {
                (512, 4): (PointStatus.PRUNED, "input 512 + output 16 = 528, over 520"),
                (256, 4): (PointStatus.CRASHED, "rank 2 died with signal 9"),
                (512, 2): (PointStatus.FAILED, f"finish reason 'stop' after 3 tokens {MARKUP}"),
            }.get((input_len, cp), (PointStatus.OK, ""))
            requests: tuple[dict[str, Any], ...] = ()
            if status == PointStatus.OK:
                ttft_ms, tpot_ms = 1.1 * input_len / cp**0.6, 41.0 / cp**0.5 + input_len / 100
                count = 8 if cp == 1 else 3
                requests = requests_of(rng, count, input_len, ttft_ms, tpot_ms)
            points.append(
                SweepPoint(
                    key=point_key(config),
                    config=config,
                    status=status,
                    message=message,
                    requests=requests,
                    warmups=requests[:1],
                    counters={"collectives_per_step": 0.0 if cp == 1 else 24.0},
                    compile_events=0,
                )
            )
    return points
