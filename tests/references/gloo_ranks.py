"""Two processes that run a test module's `main(store, rank)` as ranks of a gloo group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

__all__ = ["assert_both_end_well", "in_group"]

TIMEOUT_S = 90


def assert_both_end_well(module: str, directory: Path) -> None:
    """Both ranks of `python -m module STORE RANK` end with 0."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", module, str(directory / "store")]
    root = Path(__file__).parents[2]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], cwd=root, env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], errors


def in_group(work: Callable[[int], None]) -> None:
    """What such a module does under `__main__`: work(rank), in the group of both."""
    store, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    work(rank)
    dist.destroy_process_group()
