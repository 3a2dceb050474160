"""Ranks as real processes: same bits, and every way one can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM
from engine.parallel.failure import hung_rank, is_stopped
from engine.parallel.ring import RING_BYTES, CollectiveRing, first_difference, read_ring
from harness.core.engine_face import REFERENCE_OPS
from harness.core.errors import InputError, RankError, UsageError
from tests.engine.oracle import all_ids, copied_checkpoint, directory, settings


def _alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _wait_gone(pids: list[int], limit_s: float = 10.0) -> list[int]:
    deadline = time.monotonic() + limit_s
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if _alive(pid)]


def _pids(llm: LLM) -> list[int]:
    executor: Any = llm.executor
    return list(executor.pids)


@pytest.mark.parametrize(("numerics", "cp"), [("exact", 2), ("quantised", 4)])
def test_processes_give_the_bits_of_the_partition_in_one_process(numerics: str, cp: int) -> None:
    chosen = settings("steady_mtp", numerics=numerics, cp=cp)
    prompt = all_ids("steady_mtp", "exact")[:18]
    with LLM.in_one_process(chosen) as llm:
        (expected,) = llm.generate([prompt], max_tokens=3, want_logits=True)
    with LLM(chosen) as llm:
        (found,) = llm.generate([prompt], max_tokens=3, want_logits=True)
        scored = llm.score(prompt)
        pids = _pids(llm)
    assert found.token_ids == expected.token_ids
    assert found.logits is not None
    assert np.array_equal(found.logits, expected.logits)
    assert np.abs(scored[-1] - found.logits[0]).max() <= 1e-9
    assert found.counters == expected.counters
    assert _wait_gone(pids) == []


def _failure(target: str, time_limit_s: float = 60.0) -> tuple[RankError, list[int], float]:
    ops = (*REFERENCE_OPS, f"tests.engine.faulty_ops:{target}")
    with LLM(settings("steady_mtp", cp=2, ops=ops, time_limit_s=time_limit_s)) as llm:
        pids = _pids(llm)
        start = time.monotonic()
        with pytest.raises(RankError) as caught:
            llm.generate([[5, 6, 7]], max_tokens=4)
        elapsed_s = time.monotonic() - start
    return caught.value, pids, elapsed_s


def test_a_killed_rank_is_named_with_its_signal() -> None:
    error, pids, _ = _failure("DIES")
    assert error.rank == 1
    assert "signal 9 (SIGKILL)" in error.reason
    assert "collectives entered" in error.detail
    assert _wait_gone(pids) == []


def test_a_rank_that_leaves_is_named_with_its_code() -> None:
    error, pids, _ = _failure("LEAVES")
    assert (error.rank, error.reason) == (1, "exited with code 7")
    assert _wait_gone(pids) == []


def test_a_rank_that_raises_is_named_with_its_own_traceback() -> None:
    error, pids, _ = _failure("RAISES")
    assert error.rank == 1
    assert "ArithmeticError: injected: the norm of rank 1 is broken" in error.detail
    assert "faulty_ops.py" in error.detail
    assert _wait_gone(pids) == []


def test_a_rank_that_never_joins_is_named_within_the_limit() -> None:
    error, pids, elapsed_s = _failure("HANGS", time_limit_s=3.0)
    assert (error.rank, error.reason) == (1, "gave no answer within 3 s")
    assert "first collective that differs" in error.detail
    assert "rank 1: (not entered)" in error.detail
    assert elapsed_s < 10
    assert _wait_gone(pids) == []


def test_ranks_that_sample_other_ids_are_found() -> None:
    ops = (*REFERENCE_OPS, "tests.engine.faulty_ops:DESYNCS")
    with (
        LLM(settings("steady_mtp", cp=2, ops=ops)) as llm,
        pytest.raises(RankError, match="rank 1 sampled") as caught,
    ):
        llm.generate([[5, 6, 7]], max_tokens=2, want_logits=True)
    assert caught.value.detail == "RANK_DESYNC"


def test_a_stopped_rank_is_named_and_ended() -> None:
    with LLM(settings("steady_mtp", cp=2, time_limit_s=3.0)) as llm:
        pids = _pids(llm)
        llm.generate([[5, 6]], max_tokens=1)
        os.kill(pids[0], signal.SIGSTOP)
        with pytest.raises(RankError, match="rank 0 gave no answer"):
            llm.generate([[5, 6]], max_tokens=1)
    assert _wait_gone(pids) == []


def test_a_rank_stopped_in_the_middle_of_a_step_is_named() -> None:
    chosen = settings("steady_mtp", cp=2, time_limit_s=3.0, max_model_len=4096)
    with LLM(chosen) as llm:
        pids = _pids(llm)
        stop = threading.Timer(0.3, os.kill, (pids[1], signal.SIGSTOP))
        stop.start()
        with pytest.raises(RankError, match=r"rank 1 gave no answer within 3 s: it is stopped"):
            llm.generate([[5, 6]], max_tokens=4000)
        stop.join()
    assert _wait_gone(pids) == []


def test_of_ranks_inside_one_collective_the_stopped_one_is_to_blame() -> None:
    rings = []
    for _ in range(3):
        buffer = bytearray(RING_BYTES)
        CollectiveRing(buffer).enter(0, "moe", torch.float64, [1])
        rings.append(bytes(buffer))
    assert hung_rank(rings, [0, 1, 2]) == 0
    assert hung_rank(rings, [0, 1, 2], stopped={2}) == 2
    assert hung_rank([rings[0], bytes(RING_BYTES)], [0, 1]) == 1


def test_a_stopped_process_is_told_from_a_running_and_a_missing_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not is_stopped(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)


def test_a_rank_killed_between_steps_is_named() -> None:
    with LLM(settings("steady_mtp", cp=2)) as llm:
        pids = _pids(llm)
        os.kill(pids[1], signal.SIGKILL)
        assert _wait_gone([pids[1]]) == []
        with pytest.raises(RankError, match="rank 1 died with signal 9"):
            llm.generate([[5, 6]], max_tokens=1)
    assert _wait_gone(pids) == []


def test_an_engine_whose_ranks_are_gone_refuses_further_work() -> None:
    with LLM(settings("steady_mtp", cp=2)) as llm:
        os.kill(_pids(llm)[1], signal.SIGKILL)
        with pytest.raises(RankError):
            llm.generate([[5, 6]], max_tokens=1)
        with pytest.raises(UsageError, match="its ranks have ended"):
            llm.generate([[5, 6]], max_tokens=1)


def test_a_damaged_checkpoint_is_an_input_error_with_any_number_of_ranks(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="truncated"):
        LLM(settings("steady_mtp", cp=2, checkpoint=str(copy)))


_SCRIPT = """
    import sys, time
    from engine import LLM
    from harness.core.engine_face import EngineSettings

    if __name__ == "__main__":
        llm = LLM(EngineSettings(sys.argv[1], cp=2, numerics="exact", num_threads=1))
        print(*llm.executor.pids, flush=True)
        while True:
            llm.generate([[5, 6, 7]], max_tokens=50)
"""


def test_ranks_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, str(script), str(directory("steady_mtp"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(text) for text in parent.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGSTOP)  # a stopped rank must go too
        parent.kill()
    assert _wait_gone(pids) == []
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "pym" in name]


def test_two_engines_live_side_by_side() -> None:
    with LLM(settings("steady_mtp", cp=2)) as first, LLM(settings("steady_mtp", cp=2)) as second:
        one = first.generate([[5, 6, 7]], max_tokens=1)
        two = second.generate([[5, 6, 7]], max_tokens=1)
    assert one[0].token_ids == two[0].token_ids


def test_the_ring_keeps_the_last_collectives_and_where_a_rank_is() -> None:
    buffer = bytearray(RING_BYTES)
    ring = CollectiveRing(buffer)
    for number in range(40):
        ring.enter(number // 4, f"moe.{number}", torch.float64, (1, 256))
        if number < 39:
            ring.leave()
    entered, left, texts = read_ring(buffer)
    assert (entered, left) == (40, 39)
    assert len(texts) == 32
    assert texts[-1] == "step 9 #39 moe.39 float64 [1, 256]"
    assert texts[0].startswith("step 2 #8 ")


def test_the_first_difference_between_rings_is_shown_per_rank() -> None:
    same = ["step 0 #0 a float64 [1]", "step 0 #1 b float64 [1]"]
    assert first_difference([same, same]) == ""
    other = [same[0], "step 0 #1 b float64 [2]"]
    assert first_difference([same, other]).splitlines()[1:] == [
        "  rank 0: step 0 #1 b float64 [1]",
        "  rank 1: step 0 #1 b float64 [2]",
    ]
