"""A rank that is killed at a moment nobody chose: the same ending every time."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine import LLM
from harness.core.errors import RankError
from tests.engine.oracle import settings

_NUM_RANKS = 4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rank_killed_at_a_random_moment_is_named_with_everybodys_collectives(seed: int) -> None:
    draw = random.Random(seed)
    rank, delay_s = draw.randrange(_NUM_RANKS), draw.uniform(0.0, 1.5)
    chosen = settings("steady_mtp", cp=2, ep=_NUM_RANKS, max_model_len=4096, time_limit_s=30.0)
    with LLM(chosen) as llm:
        executor: Any = llm.executor
        pids: list[int] = list(executor.pids)
        kill = threading.Timer(delay_s, os.kill, (pids[rank], signal.SIGKILL))
        kill.start()
        start = time.monotonic()
        with pytest.raises(RankError) as caught:
            llm.generate([[5, 6, 7], [8, 9]], max_tokens=4000)
        kill.join()
    assert time.monotonic() - start < 20, f"seed {seed}"
    assert (caught.value.rank, caught.value.reason) == (rank, "died with signal 9 (SIGKILL)")
    for one in range(_NUM_RANKS):
        assert f"rank {one}: " in caught.value.detail
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
