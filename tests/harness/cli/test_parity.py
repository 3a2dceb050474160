"""The command judges, records, and ends with the exit code of the worst status."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.cli.parity import PRESETS, Selection, select_cases
from harness.core.errors import UsageError, VacuousError
from harness.core.record import RunRecord
from harness.run.bundle import read_bundle
from harness.run.store import read_ledger
from kernels.catalog import KERNELS

SUITE = """
op = "rms_norm"

[tolerance.y]
c = 1.5
c_max = 2.0
floor = 1e-30
slice_axes = [0]
reason = "fp32 squares in another order, one rounding"

[[cases]]
tier = "smoke"
axes = { T = [2, 5], d = 64 }
probe = true
"""
COMMAND = [sys.executable, "-c", "from harness.cli.main import main; main()", "parity"]
OFF = "tests.harness.cli.off_kernels:OFF"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SUITE)
    return path


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["parity", *map(str, arguments)])
    return int(ended.value.code or 0)


def _records(out: Path) -> list[RunRecord]:
    (run,) = out.iterdir()
    return list(read_ledger(run / "parity.jsonl").records)


def test_kernels_that_are_right_end_with_0_and_leave_records(suite: Path, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    out = ("--out", tmp_path / "runs", "--junit", junit)
    assert _run("--suite", suite, "--jobs", 1, *out) == 0
    assert 'tests="2" failures="0" errors="0"' in junit.read_text()
    records = _records(tmp_path / "runs")
    assert [record.key for record in records] == [
        "rms_norm/T2-d64/bfloat16/s0",
        "rms_norm/T5-d64/bfloat16/s0",
    ]
    for record in records:
        assert record.payload["status"] == "PASS"
        assert record.payload["backend"] == "interpret"
        assert record.payload["counters"]["instructions"] > 0
        assert record.payload["counters"]["launches"] == 1
        assert all(record.payload["nulls"].values())
        assert record.environment["origin"] == "cpu-interpreter"


def test_a_wrong_kernel_ends_with_1_and_its_replay_line_fails_again(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert _run("--suite", suite, "--kernels", OFF, "--jobs", 1, "--out", out) == 1
    (record, _) = _records(out)
    assert record.payload["status"] == "OUT_OF_TOLERANCE"
    stored = read_bundle(Path(record.payload["bundle"]))
    assert dict(stored.case.axes) == {"T": 1, "d": 1}  # shrunk: every shape is wrong
    printed = capsys.readouterr().out
    line = re.search(r"neuron-harness (parity --replay .*)", printed)
    assert line is not None
    again = shlex.split(line.group(1))[1:]
    assert record.payload["bundle"] in again
    # Alone in a process: a replay selects its backend for good.
    command = [*COMMAND, *again]
    replay = subprocess.run(
        [*command, "--kernels", OFF], capture_output=True, text=True, timeout=120
    )
    assert replay.returncode == 1, replay.stderr
    assert "OUT_OF_TOLERANCE" in replay.stdout


def test_a_missing_kernel_ends_with_3(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    kernels = "tests.harness.cli.off_kernels:EMPTY"
    assert _run("--suite", suite, "--kernels", kernels, "--out", out) == 3
    assert {record.payload["status"] for record in _records(out)} == {"UNSUPPORTED"}


def test_a_hanging_kernel_ends_with_1_and_every_case_has_its_status(
    suite: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    kernels = "tests.harness.cli.off_kernels:HANGING"
    options = ("--time-limit-s", 0.5, "--jobs", 2, "--out", out)
    assert _run("--suite", suite, "--kernels", kernels, *options) == 1
    assert [record.payload["status"] for record in _records(out)] == ["TIMEOUT", "TIMEOUT"]


def test_a_kernel_that_takes_too_much_memory_fails_its_case_and_the_suite_goes_on(
    suite: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    kernels = "tests.harness.cli.off_kernels:GREEDY_AT_FIVE"
    options = ("--memory-limit-gib", 0.75, "--jobs", 1, "--out", out)
    assert _run("--suite", suite, "--kernels", kernels, *options) == 1
    assert [record.payload["status"] for record in _records(out)] == ["PASS", "RUN_ERROR"]
    assert _run("--suite", suite, "--kernels", kernels, "--jobs", 1, "--out", out) == 0


def test_a_tolerance_that_takes_anything_ends_with_4(suite: Path, tmp_path: Path) -> None:
    suite.write_text(SUITE.replace("floor = 1e-30", "floor = 1e6"))
    out = tmp_path / "runs"
    assert _run("--suite", suite, "--jobs", 1, "--out", out) == 4
    assert {record.payload["status"] for record in _records(out)} == {"VACUOUS"}


def test_a_missing_backend_ends_with_3(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("--suite", suite, "--backend", "device", "--out", tmp_path / "runs") == 3
    assert "backend 'device' cannot run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--op", "rms_nrom"), "did you mean rms_norm"),
        (("--preset", "tinny"), "preset 'tinny' is not known; did you mean tiny"),
        (("--tier", "somke"), "tier 'somke' is not known; did you mean smoke"),
        (("--backend", "gpu"), "backend 'gpu' is not known"),
        (("--suite", "none.toml"), "none.toml"),
        (("--kernels", "kernels.op_table"), "must read 'package.module:object'"),
        (("--replay", "nowhere"), "nowhere/case.json"),
        (("--memory-limit-gib", "0"), "a memory limit is positive and finite"),
        (("--out", "/proc/runs"), "choose a writable directory with --out"),
    ],
)
def test_a_wrong_request_ends_with_2_and_says_what_is_wrong(
    arguments: tuple[str, str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = () if "--out" in arguments else ("--out", tmp_path / "runs")
    assert _run(*arguments, *out) == 2
    assert message in capsys.readouterr().err


def test_an_empty_suite_is_no_success(suite: Path, tmp_path: Path) -> None:
    suite.write_text(SUITE.partition("[[cases]]")[0])
    assert _run("--suite", suite, "--out", tmp_path / "runs") != 0


def test_the_tiny_preset_holds_eight_cases_or_more_of_each_of_its_kernels() -> None:
    selection = select_cases([], [], "tiny", "")
    ops = PRESETS["tiny"][0]
    assert set(ops) <= set(KERNELS)
    for op in ops:
        of_op = [case for case in selection.cases if case.op == op]
        assert len(of_op) >= 8, op
        assert any(case.probe for case in of_op), op
        assert any(case.family == "one_row" for case in of_op), op


def test_an_op_is_selected_without_the_others_of_its_stem() -> None:
    selection = select_cases([], ["dequantise_fp8"], "tiny", "full")
    assert {case.op for case in selection.cases} == {"dequantise_fp8"}
    with pytest.raises(UsageError, match="dequantise_fp8"):
        select_cases([], ["dequantize_fp8"], "tiny", "full")


def test_ctrl_c_keeps_what_is_finished_and_ends_every_worker(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    kernels = "tests.harness.cli.off_kernels:HANGING_AT_FIVE"
    options = ["--suite", str(suite), "--kernels", kernels, "--jobs", "1", "--out", str(out)]
    process = subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(600):
        if out.exists() and list(out.glob("*/parity.jsonl")) and _records(out):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert [record.key for record in _records(out)] == ["rms_norm/T2-d64/bfloat16/s0"]


def test_the_tiny_preset_judges_every_op_on_two_cores_unless_one_is_asked_for() -> None:
    selection = select_cases([], [], "tiny", "")
    on_two = {case.op for case in selection.cases if case.lnc == 2}
    assert on_two == set(PRESETS["tiny"][0])
    assert not any(case.lnc == 2 for case in selection.on_cores(1).cases)
    assert selection.on_cores(2) == selection
    with pytest.raises(VacuousError, match="--lnc 1"):
        Selection(tuple(c for c in selection.cases if c.lnc), {}).on_cores(1)
