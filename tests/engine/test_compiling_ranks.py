"""A rank that compiles longer than others have patience is waited for; one that dies is not."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine import LLM
from engine.parallel import patience
from engine.parallel.patience import Patience
from engine.parallel.processes import ProcessExecutor, RankMain
from harness.core.engine_face import EngineSettings
from harness.core.errors import RankError
from tests.engine.oracle import settings
from tests.engine.slow_compilers import SLOW_S, endless_main, secretive_main, slow_main


def _settings(time_limit_s: float) -> EngineSettings:
    return settings(cp=2, enforce_eager=False, compile_backend="aten", time_limit_s=time_limit_s)


def _open(main: RankMain, *, time_limit_s: float, shares: bool | None = None) -> LLM:
    executor = partial(ProcessExecutor, main=main, shares_collectives=shares)
    return LLM(_settings(time_limit_s), executor=executor)


@pytest.mark.parametrize("shares", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_rank_that_says_it_compiles_is_waited_for(shares: bool) -> None:
    with LLM.in_one_process(settings(cp=2)) as llm:
        (expected,) = llm.generate([[5, 6, 7]], max_tokens=1)
    with _open(slow_main, time_limit_s=3.0, shares=shares) as llm:
        start = time.monotonic()
        (found,) = llm.generate([[5, 6, 7]], max_tokens=1)
        assert time.monotonic() - start > SLOW_S
    assert found.token_ids == expected.token_ids


def test_a_rank_that_does_not_say_so_is_missed() -> None:
    with (
        _open(secretive_main, time_limit_s=60.0) as llm,
        pytest.raises(RankError, match=r"ranks \[1\] did not come in 1\.5 s"),
    ):
        llm.generate([[5, 6, 7]], max_tokens=2)


def test_a_rank_killed_while_it_compiles_is_named_at_once() -> None:
    with _open(endless_main, time_limit_s=30.0) as llm:
        executor: Any = llm.executor
        pids: list[int] = list(executor.pids)
        kill = threading.Timer(2.5, os.kill, (pids[1], signal.SIGKILL))
        kill.start()
        start = time.monotonic()
        with pytest.raises(RankError) as caught:
            llm.generate([[5, 6, 7]], max_tokens=2)
        kill.join()
    assert time.monotonic() - start < 10
    assert (caught.value.rank, caught.value.reason) == (1, "died with signal 9 (SIGKILL)")
    assert "rank 0: " in caught.value.detail
    assert "rank 1: " in caught.value.detail
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_graph_that_takes_too_long_ends_the_run_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.parallel.processes.COMPILE_LIMIT_S", 6.0)
    with _open(endless_main, time_limit_s=2.0) as llm:
        start = time.monotonic()
        with pytest.raises(RankError) as caught:
            llm.generate([[5, 6, 7]], max_tokens=2)
    assert time.monotonic() - start < 25
    assert caught.value.rank == 1
    assert "it still compiles region '" in caught.value.reason


def test_patience_counts_from_the_last_sign_of_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    now, compiling = [100.0], [False]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    one = Patience(5.0, lambda: compiling[0])
    now[0] = 104.0
    assert one.left_s() == 1.0
    compiling[0] = True
    assert one.left_s() == 5.0
    now[0], compiling[0] = 108.0, False
    assert one.left_s() == 1.0
    now[0] = 109.5
    assert one.left_s() == 0.0
