"""How busy the machine was with work that is not ours, while something was measured.

Processor time of the whole machine less that of this process and its descendants (ranks, a server
started for the sweep), from /proc. Where the system does not tell, nothing is claimed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuTimes", "OtherWork", "read_cpu_times", "share_of_others"]

_PROC = Path("/proc")
# Columns of /proc/stat that are work: user, nice, system, irq, softirq, steal.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Processor seconds used up to one moment, by the machine and by this process' tree."""

    at_s: float
    machine_s: float
    ours_s: float
    num_cpus: int


class OtherWork:
    """Adds up over any number of stretches of time."""

    def __init__(self) -> None:
        self._start: CpuTimes | None = None
        self._others_s = 0.0
        self._capacity_s = 0.0
        self._is_known = True

    def start(self) -> None:
        """A stretch begins."""
        self._start = read_cpu_times()

    def stop(self) -> None:
        """It ends."""
        end = read_cpu_times()
        if self._start is None or end is None:
            self._is_known = False
            return
        others_s, capacity_s = share_of_others(self._start, end)
        self._others_s += others_s
        self._capacity_s += capacity_s

    @property
    def share(self) -> float | None:
        """Of all cores' time, what others used; None where that is not known."""
        if not self._is_known or not self._capacity_s:
            return None
        return self._others_s / self._capacity_s


def share_of_others(start: CpuTimes, end: CpuTimes) -> tuple[float, float]:
    """(seconds others used, seconds all cores had) between two moments."""
    busy_s = (end.machine_s - start.machine_s) - (end.ours_s - start.ours_s)
    return max(0.0, busy_s), (end.at_s - start.at_s) * end.num_cpus


def read_cpu_times(proc: Path = _PROC) -> CpuTimes | None:
    """Now; None where /proc does not tell."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    try:
        fields = (proc / "stat").read_text().splitlines()[0].split()[1:]
        machine_s = sum(int(fields[place]) for place in _BUSY) / ticks_per_s
        ours_s = _ticks_of_tree(proc, os.getpid()) / ticks_per_s
    except (OSError, ValueError, IndexError):
        return None
    return CpuTimes(time.monotonic(), machine_s, ours_s, os.cpu_count() or 1)


def _ticks_of_tree(proc: Path, root: int) -> int:
    """User and system ticks of a process, its descendants, and the children they have reaped."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            # The name in brackets may itself hold brackets and blanks.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended; its parent holds its time
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
    return sum(ticks[pid] for pid in ticks if _descends(pid, root, parents))


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid and pid != root:
        pid = parents.get(pid, 0)
    return pid == root
