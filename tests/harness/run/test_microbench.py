"""Constants are fitted from raw times, say whose they are, and are whole or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.core.errors import InputError, RankError, UsageError
from harness.run.collective_probe import ProbeSpec, probe_collectives
from harness.run.microbench import (
    Calibration,
    Series,
    fit,
    measure,
    read_calibration,
    write_calibration,
)


def _series(kind: str, size: int, ns: float, **detail: int) -> Series:
    return Series(kind, size, 2, (int(ns), int(ns), int(ns)), detail)


def _calibration(origin: str) -> Calibration:
    series = (
        Series("launch", 0, 1, (2000, 2000, 2000), {}),
        *(Series("dma_rows", n, 1, (100 + n // 4,) * 3, {"row": 2048}) for n in (4000, 8000)),
    )
    return Calibration(origin, fit(series), series, {"python": "3.12"})


def test_a_straight_line_gives_back_its_floor_and_slope() -> None:
    series = [_series("all_reduce", size, 17_500 + size / 100) for size in (1000, 50_000, 900_000)]
    (line,) = fit(series)
    assert line.floor_ns == pytest.approx(17_500, abs=1)
    assert line.ns_per_byte == pytest.approx(0.01, rel=1e-3)
    assert line.worst_relative_error < 1e-3


def test_one_disturbed_size_moves_neither_floor_nor_slope_but_is_told() -> None:
    series = [_series("x", size, 1000 + size) for size in (1000, 2000, 3000, 4000, 5000)]
    series[2] = _series("x", 3000, 90_000)
    (line,) = fit(series)
    assert (line.floor_ns, line.ns_per_byte) == (pytest.approx(1000), pytest.approx(1.0))
    assert line.worst_relative_error > 0.9


def test_kinds_ranks_and_details_are_fitted_apart() -> None:
    series = [_series("dma_rows", 4096, 10, row=64), _series("dma_rows", 4096, 5, row=512)]
    assert [(line.detail, line.floor_ns) for line in fit(series)] == [
        ({"row": 64}, 10.0),
        ({"row": 512}, 5.0),
    ]


def test_warm_ups_are_not_kept_and_every_call_is_waited_for() -> None:
    now, log = [0], []

    def call() -> None:
        log.append("call")
        now[0] += 1_000_000 if log.count("call") <= 2 else 10  # the first two compile

    def wait() -> None:
        log.append("wait")
        now[0] += 5

    samples = measure(call, wait, lambda: now[0], repeats=3)
    assert samples == (15, 15, 15)
    assert log == ["wait", "call", "wait"] * 5
    with pytest.raises(UsageError, match="at least 3"):
        measure(call, wait, lambda: 0, repeats=2)


@pytest.mark.parametrize("origin", ["cpu-interpreter", "official-simulator"])
def test_constants_of_a_cpu_never_calibrate(origin: str) -> None:
    assert _calibration(origin).label() == f"uncalibrated (constants of {origin})"
    assert _calibration("device").label() == "calibrated on this device"


def test_a_launch_is_its_floor_and_the_longer_of_engines_and_dma() -> None:
    found = _calibration("device")
    assert found.launch_estimate_ns(500.0, 0) == pytest.approx(2500)
    assert found.launch_estimate_ns(500.0, 40_000) == pytest.approx(12_000)
    empty = Calibration("device", (), (), {})
    assert empty.launch_estimate_ns(1.0, 1) is None


def test_a_calibration_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "below" / "calibration.json"
    write_calibration(path, _calibration("device"))
    assert read_calibration(path) == _calibration("device")
    assert [entry.name for entry in path.parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize("text", ["", '{"schema": 1', '{"schema": 0}', '{"schema": 1}', "[]"])
def test_a_broken_calibration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"calibration\.json"):
        read_calibration(path)


def test_collectives_are_measured_between_real_processes() -> None:
    found = probe_collectives(ProbeSpec("cpu", 2, (64, 4096), repeats=3, time_limit_s=120))
    assert [(one.kind, one.num_bytes, one.ranks) for one in found] == [
        ("all_reduce", 64, 2),
        ("all_reduce", 4096, 2),
        ("all_gather", 64, 2),
        ("all_gather", 4096, 2),
    ]
    assert min(one.median_ns for one in found) > 0


def test_a_rank_without_its_device_is_named() -> None:
    with pytest.raises(RankError, match="rank 0 raised an exception"):
        probe_collectives(ProbeSpec("neuron", 1, (64,), repeats=3, time_limit_s=120))


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    write_calibration(tmp_path / "c.json", _calibration("device"))
    assert json.loads((tmp_path / "c.json").read_text())["origin"] == "device"
