"""The whole main job as a user runs it, and its parity stage."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.cli.benchmarks.measurement import Figure
from harness.core.errors import UsageError

__all__ = ["demo_figures"]


def demo_figures() -> list[Figure]:
    """Seconds of `neuron-harness run --preset tiny` in a process of its own.

    Raises:
        UsageError: the demo did not pass; its time would mean nothing.
    """
    with tempfile.TemporaryDirectory(prefix="neuron-harness-bench-") as directory:
        command = ["-m", "harness.cli.main", "run", "--preset", "tiny", "--out", directory]
        start = time.perf_counter()
        ended = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        whole_s = time.perf_counter() - start
        if ended.returncode != 0:
            raise UsageError(f"the demo ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
        parity_s = _stage_seconds(Path(directory), "parity")
    return [
        Figure("demo, whole", whole_s, "s", "<= 120 s", whole_s <= 120),
        Figure("demo, parity stage", parity_s, "s", "<= 30 s", parity_s <= 30),
    ]


def _stage_seconds(out: Path, name: str) -> float:
    (ledger,) = out.glob("*/stage.jsonl")
    for line in ledger.read_text(encoding="utf-8").splitlines():
        payload = json.loads(line)["payload"]
        if payload["name"] == name:
            return float(payload["elapsed_s"])
    raise UsageError(f"{ledger}: no record of the stage {name!r}")
