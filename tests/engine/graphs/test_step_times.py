"""A step's own account: disjoint parts, by a clock that only moves when it is told to."""

from __future__ import annotations

import pytest

from engine.graphs.region_times import (
    COLLECTIVE,
    OP,
    REGION,
    SILENT,
    STEP,
    VARIABLE,
    RegionTimes,
    report_regions,
    wants_region_timing,
)


class Clock:
    def __init__(self) -> None:
        self.ns = 0
        self.num_waits = 0

    def __call__(self) -> int:
        return self.ns

    def wait(self) -> None:
        self.num_waits += 1
        self.ns += 1


def _step(clock: Clock, times: RegionTimes, *, fails: bool = False) -> object:
    """host 3, layer (5, attention (7, op 2, collective 11), 13), head 17, host 19."""

    def spend(ns: int) -> None:
        clock.ns += ns

    gather = times.timed_collective(lambda part, label: spend(11))
    rms_norm = times.timed_op("rms_norm", lambda: spend(2))

    def attend() -> None:
        spend(7)
        rms_norm()
        gather(None, "attention.4")
        if fails:
            raise RuntimeError("in the middle")

    attention = times.timed("layer", "attention", attend)

    def layer() -> None:
        spend(5)
        attention()
        spend(13)

    run_layer = times.timed("layer", "", layer)
    head = times.timed("head", "", lambda: spend(17))

    def step() -> str:
        spend(3)
        run_layer()
        head()
        spend(19)
        return "ids"

    return times.timed_step(step)()


def test_no_part_holds_the_time_of_another() -> None:
    clock = Clock()
    result, account = _step(clock, RegionTimes(clock_ns=clock))  # type: ignore[misc]
    assert result == "ids"
    assert account == {
        (REGION, "layer"): (1, 5 + 13),
        (REGION, "layer / attention"): (1, 7 + 2),
        (COLLECTIVE, "attention"): (1, 11),
        (REGION, "head"): (1, 17),
        (OP, "rms_norm"): (1, 2),
        (STEP, ""): (1, 77),
    }


def test_the_table_of_a_run_still_holds_whole_regions() -> None:
    clock = Clock()
    times = RegionTimes(clock_ns=clock)
    _step(clock, times)
    assert times.total_ms()["layer", ""] == pytest.approx(38e-6)
    assert times.total_ms()["layer", "attention"] == pytest.approx(20e-6)


def test_every_step_has_an_account_of_its_own_also_after_one_that_failed() -> None:
    clock = Clock()
    times = RegionTimes(clock_ns=clock)
    with pytest.raises(RuntimeError, match="in the middle"):
        _step(clock, times, fails=True)
    _, account = _step(clock, times)  # type: ignore[misc]
    assert account[REGION, "layer"] == (1, 18)
    assert account[STEP, ""] == (1, 77)


def test_borders_of_regions_wait_for_the_device_within_the_region() -> None:
    clock = Clock()
    _, account = _step(clock, RegionTimes(clock.wait, clock))  # type: ignore[misc]
    assert clock.num_waits == 2 * 3
    # The wait before a region belongs to what went before it, the one after it to the region.
    assert account[REGION, "head"] == (1, 18)
    assert account[COLLECTIVE, "attention"] == (1, 11)
    assert account[REGION, "layer / attention"] == (1, 10)
    assert account[REGION, "layer"] == (1, 18 + 2)


def test_a_silent_run_is_timed_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wants_region_timing({VARIABLE: SILENT})
    monkeypatch.setenv(VARIABLE, SILENT)
    report_regions(RegionTimes())
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(VARIABLE, "1")
    report_regions(RegionTimes())
    assert "total ms" in capsys.readouterr().err
