"""A command that is told to end, or killed, leaves no process and no temporary directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.errors import ExitCode

_CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "steady_mtp"
_MAIN = "from harness.cli.main import main; main()"
# Fork server, resource tracker and two ranks.
_NUM_DESCENDANTS = 4


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _until(holds: object, limit_s: float = 30.0) -> bool:
    assert callable(holds)
    deadline = time.monotonic() + limit_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(holds())


@pytest.mark.parametrize(
    ("ending", "code"),
    [(signal.SIGTERM, ExitCode.INTERRUPTED), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_ranks_and_temporary_directories_go_with_the_command(
    tmp_path: Path, ending: signal.Signals, code: int
) -> None:
    place = tmp_path / "t"
    place.mkdir()
    command = [
        sys.executable, "-c", _MAIN, "generate", "--checkpoint", str(_CHECKPOINT), "--ids", "5,6",
        "--cp", "2", "--max-tokens", "4000", "--max-model-len", "4096", "--ignore-eos",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(place), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as parent:
        assert _until(lambda: len(set(_descendants(parent.pid))) == _NUM_DESCENDANTS)
        assert list(place.glob("pymp-*"))
        pids = set(_descendants(parent.pid))
        parent.send_signal(ending)
        assert parent.wait(20) == code
        if ending is signal.SIGTERM:  # gone when the command ends, not some time later
            assert [file.name for file in place.iterdir()] == []
    assert _until(lambda: not any(map(_alive, pids)), limit_s=10)
    assert [file.name for file in place.iterdir()] == []
