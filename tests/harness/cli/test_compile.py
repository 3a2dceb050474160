"""The compile command: lists, compiles once, repeats what failed, names it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli import compile as compile_command
from harness.core.op_call import Argument, OpCall

_MATRIX = "input_lens = [8]\noutput_len = 2\n"
_GOOD = OpCall(
    "rms_norm",
    (
        Argument("tensor", "bfloat16", ((1, 64),)),
        Argument("tensor", "bfloat16", ((64,),)),
        Argument("scalar", "1e-06"),
    ),
)
_BAD = OpCall(
    "rms_norm",
    (_GOOD.arguments[0], Argument("tensor", "bfloat16", ((65,),)), _GOOD.arguments[2]),
)


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(_MATRIX)
    return path


def test_the_list_names_every_graph(
    command, matrix: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("compile", "--matrix", matrix, "--checkpoint", checkpoint, "--list") == 0
    *graphs, total, unknown = capsys.readouterr().out.splitlines()
    assert total == f"{len(graphs)} graphs"
    assert unknown.startswith("not listed: ")
    assert "(linear_fp4_grouped, swiglu) whose rows depend on the prompt" in unknown
    assert len(set(graphs)) == len(graphs) > 50
    assert "vocab_argmax(float32[1x512])" in graphs


@pytest.mark.parametrize(
    ("engine", "shown"),
    [
        ('prefills = ["attention"]', "prefill_attention(bfloat16[64x8x64]"),
        # 8 experts of 12 slots.
        ("[engine]\nmoe_capacity = 12", "linear_fp4_grouped(bfloat16[96x256]"),
        # Rows of a verified block, and the draft stages' own projection of three taps.
        ('[engine]\nspeculative = "dspark"', "linear_fp8(bfloat16[8x768]"),
    ],
)
def test_prefill_slots_and_drafts_are_listed(
    command, tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str],
    engine: str, shown: str,
) -> None:  # fmt: skip
    matrix = tmp_path / "path.toml"
    matrix.write_text(f"{_MATRIX}{engine}\n")
    assert command("compile", "--matrix", matrix, "--checkpoint", checkpoint, "--list") == 0
    printed = capsys.readouterr().out
    assert shown in printed
    assert ("not listed" in printed) is ("moe_capacity" not in engine)


def test_what_failed_is_named_and_only_it_is_compiled_again(
    command, matrix: Path, checkpoint: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked = ("compile", "--matrix", matrix, "--checkpoint", checkpoint, "--backend", "interpret")
    asked = (*asked, "--jobs", 1, "--out", tmp_path)
    monkeypatch.setattr(compile_command, "_calls", lambda *_: ((_GOOD, _BAD), ()))
    assert command(*asked) == 1
    assert f"FAILED {_BAD.label}: " in capsys.readouterr().out
    monkeypatch.setattr(compile_command, "_calls", lambda *_: ((_GOOD,), ()))
    assert command(*asked) == 0
    printed = capsys.readouterr().out
    assert "1 graphs, 1 compiled before" in printed
    assert "all 1 graphs are compiled (interpret)" in printed
    lines = (tmp_path / "compile" / "compile.jsonl").read_text().splitlines()
    records = [json.loads(line)["payload"] for line in lines]
    assert [record["status"] for record in records] in (["OK", "FAILED"], ["FAILED", "OK"])


@pytest.mark.slow
def test_an_interrupted_compile_keeps_what_was_done_and_compiles_the_rest(
    command, matrix: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("compile", "--matrix", matrix, "--checkpoint", checkpoint, "--backend", "interpret")
    asked = (*asked, "--jobs", "2", "--out", tmp_path)
    records = tmp_path / "compile" / "compile.jsonl"
    code = "from harness.cli.main import main; main()"
    child = subprocess.Popen([sys.executable, "-c", code, *map(str, asked)])
    deadline = time.monotonic() + 100
    while not (records.exists() and records.read_bytes().count(b"\n") >= 3):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.kill()
    child.wait()
    with records.open("ab") as file:
        file.write(b'{"kind": "compile", "key": "half')  # what a crash may leave
    kept = records.read_bytes().count(b"\n")
    assert command(*asked) == 0
    printed = capsys.readouterr().out
    total = int(printed.split(" graphs, ")[0].rpartition("\n")[2])
    assert 3 <= kept < total
    assert f"{total} graphs, {kept} compiled before" in printed
    assert f"{total - kept} graphs" in printed  # the estimate is of the rest
    assert f"all {total} graphs are compiled (interpret)" in printed
    bodies = [json.loads(line)["payload"] for line in records.read_text().splitlines()]
    assert len({body["label"] for body in bodies}) == len(bodies) == total


def test_without_a_device_it_cannot_judge(
    command, matrix: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("compile", "--matrix", matrix, "--checkpoint", checkpoint, "--out", tmp_path)
    assert command(*asked) == 3
    assert "backend 'device' cannot run" in capsys.readouterr().err


@pytest.mark.slow
def test_regions_of_every_engine_are_captured_and_counted(
    command, matrix: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--checkpoint", checkpoint, "--regions", "--compile-backend", "aten")
    assert command("compile", "--matrix", matrix, *options) == 0
    # Eight ways to attend and one to route, in a prompt bucket and a decode bucket.
    line = "fast cp=1 ops=references compiled aten: 18 region graphs, 18 compiled now\n"
    assert capsys.readouterr().out.replace(" \n", " ") == line


def test_regions_for_a_device_are_left_to_its_own_compiler(
    command, matrix: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix.write_text(_MATRIX + '[engine]\ndevice = "neuron"\n')
    assert command("compile", "--matrix", matrix, "--checkpoint", checkpoint, "--regions") == 2
    assert "leave device out" in capsys.readouterr().err
