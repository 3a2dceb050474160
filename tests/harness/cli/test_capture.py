"""Inputs taken from an engine run: what is kept, and that parity judges them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.cli.main import main
from harness.core.errors import UsageError, VacuousError
from harness.core.numerics import FAST
from harness.core.op_table import OpTable, resolve_op_table
from harness.run.bundle import bundles_below, read_bundle
from harness.run.capture import Capture
from references.op_table import TABLE
from suites.loader import load_op_suite
from tiny_checkpoints.generator import generate

OFF = "tests.harness.cli.off_kernels:OFF"


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("capture")
    checkpoint = generate("tiny-A", root / "tiny-A")
    ops = ("--op", "rms_norm", "--op", "sparse_attention", "--op", "linear_fp8")
    assert _run("capture", "--checkpoint", checkpoint, *ops, "--out", root / "captures") == 0
    return root / "captures"


def test_parity_replays_what_an_engine_called(
    captured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = bundles_below(captured)
    cases = [read_bundle(place).case for place in places]
    assert {case.op for case in cases} == {"rms_norm", "sparse_attention", "linear_fp8"}
    # Prefill and decode steps both occur.
    assert len({case.axes["T"] for case in cases if case.op == "sparse_attention"}) > 1
    assert _run("parity", "--replay", captured) == 0
    assert "PASS" in capsys.readouterr().out


def test_the_prefill_path_is_captured_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = generate("tiny-A", tmp_path / "tiny-A")
    options = ("--checkpoint", checkpoint, "--op", "prefill_attention", "--max-tokens", 1)
    assert _run("capture", *options, "--out", tmp_path / "none") == 4
    kept = tmp_path / "kept"
    assert _run("capture", *options, "--prefill", "attention", "--out", kept) == 0
    assert {read_bundle(place).case.op for place in bundles_below(kept)} == {"prefill_attention"}
    assert _run("parity", "--replay", kept) == 0
    assert "PASS" in capsys.readouterr().out


def test_a_wrong_kernel_fails_on_captured_inputs(captured: Path) -> None:
    place = next(p for p in bundles_below(captured) if p.name.startswith("rms_norm"))
    assert _run("parity", "--replay", place) == 0
    assert _run("parity", "--replay", place, "--kernels", OFF) == 1


def test_calls_of_one_face_are_kept_up_to_the_number_asked_for_and_passed_on() -> None:
    capture = Capture(TABLE, ("rms_norm",), calls_per_face=2)
    table = capture.table()
    weight = torch.ones(8, dtype=torch.bfloat16)
    for value in (1.0, 2.0, 3.0):
        x = torch.full((2, 8), value, dtype=torch.bfloat16)
        assert torch.equal(
            table.rms_norm(x, weight, 1e-6, numerics=FAST),
            TABLE.rms_norm(x, weight, 1e-6, numerics=FAST),
        )
        x.zero_()  # what was kept is a copy
    table.rms_norm(torch.ones(3, 8, dtype=torch.bfloat16), weight, 1e-6, numerics=FAST)
    assert [float(kept.values["x"][0, 0]) for kept in capture.kept] == [1.0, 2.0, 1.0]


def test_an_op_that_was_never_called_proves_nothing(tmp_path: Path) -> None:
    tolerances = load_op_suite("rms_norm").tolerances
    with pytest.raises(VacuousError, match="called none of rms_norm"):
        Capture(TABLE, ("rms_norm",)).write(tmp_path, TABLE, tolerances, 240)


def test_the_watching_table_is_there_only_while_a_capture_runs() -> None:
    with pytest.raises(UsageError, match="only there while"):
        resolve_op_table(["references.op_table:TABLE", "harness.cli.capture:TABLE"])
    assert isinstance(Capture(TABLE, ("rope",)).table(), OpTable)


@pytest.mark.parametrize("arguments", [("--op", "rms_nrm"), ("--op", "rms_norm", "--calls", "0")])
def test_wrong_requests_end_with_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert _run("capture", *arguments, "--checkpoint", tmp_path, "--out", tmp_path / "out") == 2


def test_a_directory_without_bundles_ends_with_2(tmp_path: Path) -> None:
    assert _run("parity", "--replay", tmp_path) == 2
