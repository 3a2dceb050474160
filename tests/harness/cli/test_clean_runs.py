"""Clean runs through the command line: the shipped suites raise no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.ops import OP_SHEET

OFF = "tests.harness.cli.off_kernels:OFF"


def _run(tmp_path: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["parity", *arguments, "--out", str(tmp_path)])
    return int(ended.value.code or 0)


def test_a_few_runs_are_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path, "--op", "rms_norm", "--op", "topk_positions", "--clean-runs", "5") == 0
    assert "5 clean runs from seed 0: 10 cases, 0 false alarms in 0 runs" in capsys.readouterr().out


def test_kernels_that_are_off_alarm_in_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--op", "rms_norm", "--clean-runs", "3", "--kernels", OFF, "--tier", "smoke")
    assert _run(tmp_path, *arguments) == 1
    assert "3 false alarms in 3 runs" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("lnc", ["1", "2"])
def test_200_runs_of_every_op_are_clean(
    lnc: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = [part for op in OP_SHEET for part in ("--op", op)]
    assert _run(tmp_path, *ops, "--clean-runs", "200", "--seed", "4", "--lnc", lnc) == 0
    assert "4,800 cases, 0 false alarms" in capsys.readouterr().out
