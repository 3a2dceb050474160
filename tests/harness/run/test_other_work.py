"""What others do on the machine is told apart from what this process and its children do."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.run.other_work import CpuTimes, OtherWork, read_cpu_times, share_of_others

TICKS = os.sysconf("SC_CLK_TCK")


def test_others_have_what_is_busy_and_not_ours() -> None:
    start = CpuTimes(at_s=10.0, machine_s=100.0, ours_s=40.0, num_cpus=4)
    end = CpuTimes(at_s=12.0, machine_s=105.0, ours_s=44.0, num_cpus=4)
    assert share_of_others(start, end) == (1.0, 8.0)
    # Clocks of the two sources tick apart: never less than nothing.
    assert share_of_others(start, CpuTimes(12.0, 103.0, 44.0, 4)) == (0.0, 8.0)


def fake_proc(place: Path, *, busy: int, processes: dict[int, tuple[int, int]]) -> Path:
    """A /proc with {pid: (parent, user ticks)}."""
    (place / "stat").write_text(f"cpu  {busy} 0 0 999999 0 0 0 0 0 0\ncpu0 1 2 3\n")
    for pid, (parent, user) in processes.items():
        (place / str(pid)).mkdir()
        fields = ["S", str(parent), *["0"] * 9, str(user), "1", "1", "1", *["0"] * 8]
        (place / str(pid) / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
    return place


def test_the_tree_is_this_process_and_everything_below_it(tmp_path: Path) -> None:
    me = os.getpid()
    tree = {me: (1, 10), me + 1: (me, 20), me + 2: (me + 1, 30), 1: (0, 500), 77: (1, 600)}
    times = read_cpu_times(fake_proc(tmp_path, busy=5000, processes=tree))
    assert times is not None
    assert times.machine_s == 5000 / TICKS
    assert times.ours_s == (10 + 20 + 30 + 3 * 3) / TICKS


def test_a_system_without_proc_claims_nothing(tmp_path: Path) -> None:
    assert read_cpu_times(tmp_path / "none") is None
    (tmp_path / "stat").write_text("nothing\n")
    assert read_cpu_times(tmp_path) is None


def test_nothing_watched_is_null() -> None:
    assert OtherWork().share is None


def _spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="/proc does not tell here")
def test_a_child_of_ours_is_ours_and_a_stranger_is_not() -> None:
    stranger = (
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"  # the orphan belongs to nobody here
        "os.setsid()\n"
        "print('on', flush=True)\n"
        "end = time.process_time() + 0.6\n"
        "while time.process_time() < end: pass\n"
    )
    ours = multiprocessing.get_context("fork").Process(target=_spin, args=(0.6,))
    start = read_cpu_times()
    ours.start()
    ours.join()
    middle = read_cpu_times()
    done = subprocess.run([sys.executable, "-c", stranger], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"on\n"
    end = read_cpu_times()
    assert start is not None
    assert middle is not None
    assert end is not None
    assert middle.ours_s - start.ours_s >= 0.55
    # The pipe held the stranger until it ended: its time is the machine's, not ours.
    assert end.machine_s - middle.machine_s >= 0.55
    assert end.ours_s - middle.ours_s < 0.5
