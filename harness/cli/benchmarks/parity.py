"""Parity as users wait for it: the default tier of every op, exhaustive casts, one comparison."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time

import torch

from harness.cli.benchmarks.measurement import Figure
from harness.core.case import Tolerance
from harness.core.errors import UsageError
from harness.run.compare import compare_within_budget

__all__ = ["parity_figures"]

_ELEMENTS = 10_000_000
_ROW = 5_000


def parity_figures() -> list[Figure]:
    """Seconds of the default tier on two cores, of all casts, of comparing 10^7 elements.

    Raises:
        UsageError: a run did not pass; its time would mean nothing.
    """
    tier_s, printed = _seconds_of("--preset", "all", "--jobs", "2")
    found = re.search(r"^\s*all\s+([\d,]+)", printed, re.MULTILINE)
    num_cases = int(found[1].replace(",", "")) if found else 0
    casts_s, _ = _seconds_of("--casts")
    compare_s = _comparison_seconds()
    tier_goal = ">= 600 cases in <= 150 s on two cores"
    return [
        Figure("parity, default tier", tier_s, "s", tier_goal, tier_s <= 150 and num_cases >= 600),
        Figure("parity, cases of it", num_cases, "1"),
        Figure("parity, exhaustive casts", casts_s, "s", "<= 10 s", casts_s <= 10),
        Figure("parity, comparing 10^7", compare_s, "s", "<= 1 s", compare_s <= 1),
    ]


def _seconds_of(*arguments: str) -> tuple[float, str]:
    """A parity command in a process of its own, start-up included, and what it printed."""
    with tempfile.TemporaryDirectory(prefix="neuron-harness-bench-") as directory:
        command = ["-m", "harness.cli.main", "parity", *arguments, "--out", directory]
        start = time.perf_counter()
        ended = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        seconds = time.perf_counter() - start
    if ended.returncode != 0:
        said = (ended.stdout + ended.stderr)[-2000:]
        raise UsageError(f"parity {' '.join(arguments)} ended with {ended.returncode}:\n{said}")
    return seconds, ended.stdout


def _comparison_seconds() -> float:
    """Three-way, by row, on one thread as a worker has it; the best of three."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(0)
    golden = torch.randn(_ELEMENTS // _ROW, _ROW, generator=source, dtype=torch.float64)
    kernel = golden.to(torch.bfloat16)
    baseline = kernel.clone()
    budget = Tolerance(1.25, 1.25, 1e-30, (0,), "both sides are the rounded golden")
    times = []
    for _ in range(3):
        start = time.perf_counter()
        compare_within_budget("y", kernel, golden, baseline, budget)
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return min(times)
