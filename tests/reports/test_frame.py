"""Derived numbers on hand-computed stamps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.core.results import PointStatus, SweepPoint
from reports.frame import COMMON_COLUMNS, frame_of, rows_of
from reports.ledger import Ledger, read_run
from tests.reports.sample_run import record, write_run
from tests.reports.sample_sweep import sweep_config

MS = 1_000_000


def request(send_ms: int, tokens_ms: list[int], **more: Any) -> dict[str, Any]:
    return {
        "t_send_ns": send_ms * MS,
        "token_ns": [stamp * MS for stamp in tokens_ms],
        "finish_reason": "length",
        **more,
    }


def sweep_row(tmp_path: Path, *requests: dict[str, Any], status: str = "OK") -> dict[str, Any]:
    message = "" if status == PointStatus.OK else "reason"
    point = SweepPoint("k", sweep_config(64, 2), status, message, requests)
    ledger = read_run(write_run(tmp_path / "run", [record("sweep", "k", point)]))
    return rows_of(ledger, "sweep")[0]


def test_ttft_tpot_and_throughput_follow_their_formulas(tmp_path: Path) -> None:
    row = sweep_row(tmp_path, request(100, [150, 170, 200]), request(200, [230, 260, 320]))
    assert row["ttft_samples_ms"] == (50.0, 30.0)
    assert row["tpot_samples_ms"] == (25.0, 45.0)
    assert row["itl_samples_ms"] == (20.0, 30.0, 30.0, 60.0)
    assert (row["ttft_ms"].median, row["tpot_ms"].median) == (40.0, 35.0)
    assert row["output_tokens_per_s"] == pytest.approx(6 / 0.22)  # in flight 100..200 and 200..320


def test_a_failed_request_is_counted_and_in_no_statistic(tmp_path: Path) -> None:
    failed = request(200, [900], finish_reason=None)
    row = sweep_row(tmp_path, request(100, [150, 170]), failed)
    assert (row["num_completed"], row["num_failed"]) == (1, 1)
    assert row["failures"] == ("no finish reason",)
    assert row["ttft_samples_ms"] == (50.0,)
    assert row["output_tokens_per_s"] == pytest.approx(2 / (0.07 + 0.7))


def test_throughput_counts_the_time_in_flight_once_and_no_pause(tmp_path: Path) -> None:
    overlapping = (request(0, [50, 100]), request(20, [60, 120]), request(30, [90, 110]))
    after_a_pause = request(5_000, [5_030, 5_080])
    row = sweep_row(tmp_path, *overlapping, after_a_pause)
    assert row["output_tokens_per_s"] == pytest.approx(8 / (0.12 + 0.08))


def test_a_failed_point_has_no_latency_though_its_requests_are_kept(tmp_path: Path) -> None:
    row = sweep_row(tmp_path, request(0, [5, 6]), status=PointStatus.FAILED)
    assert row["ttft_ms"] is None
    assert row["output_tokens_per_s"] is None
    assert row["num_completed"] == 1


def test_one_token_has_no_tpot(tmp_path: Path) -> None:
    row = sweep_row(tmp_path, request(0, [7]))
    assert row["ttft_ms"].median == 7.0
    assert row["tpot_ms"] is None


def test_ep_zero_means_the_same_as_cp_and_ops_have_a_short_name(tmp_path: Path) -> None:
    row = sweep_row(tmp_path, request(0, [7]))
    assert (row["cp"], row["ep"], row["ops"]) == (2, 2, "references")


def test_the_worst_output_speaks_for_a_case(sample: Ledger) -> None:
    row = next(row for row in rows_of(sample, "parity") if row["status"] == "OUT_OF_TOLERANCE")
    assert (row["output"], row["budget_ratio"], row["worst_index"]) == ("y", 4.2, (3, 17))
    assert row["num_compared"] == 2 * 4096


@pytest.mark.parametrize("kind", ["parity", "tokens", "sweep", "metric", "gate", "stage"])
def test_absent_values_are_none_never_nan(sample: Ledger, kind: str) -> None:
    frame = frame_of(sample, kind)
    assert tuple(frame.columns[:4]) == COMMON_COLUMNS
    assert len(frame) == len(sample.of_kind(kind))
    for value in frame.to_numpy().ravel():
        assert not (isinstance(value, float) and pd.isna(value))


def test_a_kind_without_records_is_an_empty_frame_with_columns(green: Ledger) -> None:
    frame = frame_of(green, "metric")
    assert (len(frame), tuple(frame.columns)) == (0, COMMON_COLUMNS)
