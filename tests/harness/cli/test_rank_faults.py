"""What a user sees of a rank's fault: exit code, the rank's name, the last collectives of all."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.errors import ExitCode
from tests.engine.oracle import copied_checkpoint
from tests.harness.cli.conftest import Command

_CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "steady_mtp"
_MAIN = "from harness.cli.main import main; main()"


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _ranks(pid: int) -> list[int]:
    """Rank processes below a command, which are those that have mapped its shared memory."""
    found = []
    for one in _descendants(pid):
        try:
            maps = Path(f"/proc/{one}/maps").read_text()
        except OSError:
            continue  # it ended meanwhile
        if "/dev/shm/#" in maps:
            found.append(one)
    return found


def _until(holds: object, limit_s: float = 60.0) -> bool:
    assert callable(holds)
    deadline = time.monotonic() + limit_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(holds())


def test_a_rank_that_dies_ends_the_command_with_its_name_and_everybodys_collectives() -> None:
    command = [
        sys.executable, "-c", _MAIN, "generate", "--checkpoint", str(_CHECKPOINT), "--ids", "5,6",
        "--cp", "2", "--max-tokens", "4000", "--max-model-len", "4096", "--ignore-eos",
    ]  # fmt: skip
    names_before = set(os.listdir("/dev/shm"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr is not None
        assert _until(lambda: len(_ranks(parent.pid)) == 2)
        ranks, pids = _ranks(parent.pid), set(_descendants(parent.pid))
        time.sleep(1.0)  # in the middle of its steps
        os.kill(max(ranks), signal.SIGKILL)
        said = parent.stderr.read()
        code = parent.wait(30)
    assert code == ExitCode.RANK
    assert re.search(r"^error: rank [01] died with signal 9 \(SIGKILL\)", said, re.MULTILINE)
    assert [text for text in ("rank 0: ", "rank 1: ") if text in said] == ["rank 0: ", "rank 1: "]
    assert "collectives entered" in said
    assert _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), limit_s=10)
    left = set(os.listdir("/dev/shm")) - names_before
    assert not [name for name in left if "pym" in name or "neuron" in name]


def test_a_full_dev_shm_ends_the_command_with_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.parallel.shared_segment._free_bytes", lambda _: 4096)
    code = command("generate", "--checkpoint", _CHECKPOINT, "--ids", "5,6", "--cp", 2)
    assert code == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(
        r"^error: /dev/shm is full: the Engram tables .* need \d+ bytes, 4096 are free;", line
    )


@pytest.mark.parametrize("damage", ["truncated", "header"])
def test_a_damaged_checkpoint_ends_the_command_with_the_files_name(
    damage: str, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copied_checkpoint("steady_mtp", tmp_path) / "model.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[20:60] = b"\xff" * 40
    file.write_bytes(content)
    code = command("generate", "--checkpoint", file.parent, "--ids", "5,6", "--cp", 2)
    assert code == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {file}: ")
    assert "copy it again" in line
