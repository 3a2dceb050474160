"""2,000 points: the page stays below 5 MB and is rendered within 20 s."""

from __future__ import annotations

import random
import time
from itertools import product
from pathlib import Path

import pytest

from harness.core.record import RunRecord
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import point_key
from reports.render import render
from tests.reports.sample_run import record, write_run
from tests.reports.sample_sweep import requests_of, sweep_config


def large_sweep() -> list[RunRecord]:
    """10 settings × 5 loads × 40 input lengths, one in twenty failed, 3 requests each."""
    rng = random.Random(1)
    axes = product((1, 2, 4, 8, 16), ("fast", "quantised"), (1, 2, 4, 8, 16), range(64, 2624, 64))
    records = []
    for place, (cp, numerics, concurrency, input_len) in enumerate(axes):
        config = sweep_config(input_len, cp, numerics=numerics, concurrency=concurrency)
        requests = requests_of(rng, 3, input_len, input_len / cp, 40 / cp)
        point = SweepPoint(point_key(config), config, PointStatus.OK, "", requests, requests[:1])
        if place % 20 == 0:
            reason = "finish reason 'stop' after 3 of 16 tokens"
            point = SweepPoint(point.key, config, PointStatus.FAILED, reason)
        records.append(record("sweep", point.key, point))
    return records


@pytest.mark.slow
def test_two_thousand_points_make_a_small_page_in_time(tmp_path: Path) -> None:
    records = large_sweep()
    assert len(records) == 2000
    run = write_run(tmp_path / "run", records)
    start = time.process_time()
    _, html = render(run, tmp_path / "out")
    elapsed_s = time.process_time() - start
    assert html.stat().st_size < 5_000_000
    assert elapsed_s < 20
    text = html.read_text(encoding="utf-8")
    assert text.count(">FAILED</a>") == 100 + 1  # all of the table, and one line for them on top
