"""`interpret` and `lint`: third-party scripts run and kernel sources are judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.main import main

_SCRIPT = """\
import sys
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(sys.argv[1]))
    nl.store(out, tile)
    return out


print(kernel(np.zeros((2, 3), np.float32)).tolist())
"""


def _interpret(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from harness.cli.main import main; main()", "interpret"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_script_runs_with_its_arguments_summary_and_trace(tmp_path: Path) -> None:
    script, trace = tmp_path / "script.py", tmp_path / "trace.jsonl"
    script.write_text(_SCRIPT, encoding="utf-8")
    run = _interpret("--summary", "--trace", str(trace), "--", str(script), "1.5")
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{[[1.5] * 3] * 2}\n"
    assert "kernel[1]: 3 instructions" in run.stderr
    assert "not device time" in run.stderr
    rows = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert [row["instruction"] for row in rows] == ["dma_copy", "tensor_scalar", "dma_copy"]
    assert rows[1]["engine"] == "vector"


def test_a_refused_kernel_ends_the_script_with_its_message(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.replace("nl.load(x)", "nl.zeros((256, 3), x.dtype)"), "utf-8")
    run = _interpret("--", str(script), "1")
    assert run.returncode == 1
    assert "256 partitions" in run.stderr
    line = _SCRIPT.splitlines().index("print(kernel(np.zeros((2, 3), np.float32)).tolist())") + 1
    assert f'File "{script}", line {line}' in run.stderr


def test_a_missing_script_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["interpret", "--", "absent.py"])
    assert ended.value.code == 2
    assert "absent.py: script is 'absent.py'" in capsys.readouterr().err


def test_lint_exits_1_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("import nki\n\n@nki.jit\ndef k(x, *, y):\n    return x\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(path)])
    assert ended.value.code == 1
    assert f"{path}:4: keyword-only: k: y after `*`" in capsys.readouterr().out


def test_lint_of_clean_code_exits_0(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("import nki\n\n@nki.jit\ndef k(x):\n    return x\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(path)])
    assert not ended.value.code


@pytest.mark.parametrize("content", [None, "def broken(:\n"])
def test_lint_of_nothing_or_of_no_python_is_wrong_usage(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernel.py"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(path)])
    assert ended.value.code == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"\n\n# fine\nx = '\xff'\n", b"x = 0\0\n"])
def test_lint_of_a_file_that_is_not_utf8_names_the_file(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(path)])
    assert ended.value.code == 2
    line = 1 + content.partition(b"\xff")[0].count(b"\n") if b"\xff" in content else 1
    assert f"{path}: line {line} is" in capsys.readouterr().err


def test_lint_of_a_folder_without_python_is_vacuous(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no kernel", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(tmp_path)])
    assert ended.value.code == 4
    said = capsys.readouterr()
    assert f"{tmp_path}: no .py file" in said.err
    assert said.out == ""


def test_a_trace_that_cannot_be_written_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n", encoding="utf-8")
    run = _interpret("--trace", str(tmp_path / "none" / "x.jsonl"), "--", str(script))
    assert run.returncode == 2
    assert run.stdout == ""
    assert "--trace" in run.stderr
    assert "cannot be written" in run.stderr
