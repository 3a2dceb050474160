"""A crash or a hang costs one task; nothing outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.core.errors import ExitCode, UsageError
from harness.run.isolate import Crashed, Finished, Limits, Outcome, Raised, TimedOut, WorkerPool
from tests.harness.run import unruly

LIMITS = Limits(time_limit_s=1.0, start_limit_s=60.0, memory_limit_bytes=512 << 20)


def _run(tasks: Sequence[str], num_workers: int = 1) -> list[Outcome[object]]:
    pool: WorkerPool[str, object] = WorkerPool(unruly.setup, num_workers, LIMITS)
    with pool:
        outcomes = dict(pool.run(tasks))
    return [outcomes[index] for index in range(len(tasks))]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _await_end(pid: int) -> bool:
    for _ in range(100):
        if not _alive(pid):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_task_gets_its_own_answer(num_workers: int) -> None:
    tasks = [f"echo:{number}" for number in range(20)]
    assert _run(tasks, num_workers) == [Finished(str(number)) for number in range(20)]


def test_a_worker_is_kept_for_the_next_task_and_replaced_after_a_crash() -> None:
    first, second, crash, third = _run(["pid", "pid", f"die:{signal.SIGKILL.value}", "pid"])
    assert first == second
    assert crash == Crashed("the worker died with signal 9 (SIGKILL)")
    assert isinstance(third, Finished)
    assert third != first


def test_a_segmentation_fault_and_an_exit_are_named() -> None:
    fault, ended, after = _run([f"die:{signal.SIGSEGV.value}", "exit:3", "echo:on"])
    assert fault == Crashed("the worker died with signal 11 (SIGSEGV)")
    assert ended == Crashed("the worker ended with exit code 3")
    assert after == Finished("on")


def test_a_hanging_task_is_ended_at_its_limit_and_the_rest_goes_on() -> None:
    start_s = time.monotonic()
    hang, after = _run(["sleep:60", "echo:on"])
    assert hang == TimedOut("no result within 1 s; the worker was ended")
    assert after == Finished("on")
    assert time.monotonic() - start_s < 20


def test_an_exception_leaves_the_worker_alive() -> None:
    before, raised, misuse, after = _run(["pid", "raise:seven", "misuse:not so", "pid"])
    assert isinstance(raised, Raised)
    assert raised.message == "ValueError: seven"
    assert "unruly.py" in raised.traceback
    assert raised.exit_code is None
    assert isinstance(raised.as_error(), RuntimeError)
    assert isinstance(misuse, Raised)
    assert misuse.exit_code is ExitCode.USAGE
    assert str(misuse.as_error()) == "not so"
    assert before == after


def test_memory_beyond_the_limit_is_refused_to_the_task_alone() -> None:
    small, large, after = _run([f"hoard:{64 << 20}", f"hoard:{2 << 30}", "echo:on"])
    assert small == Finished(64 << 20)
    assert isinstance(large, Raised)
    assert large.message.startswith("MemoryError")
    assert after == Finished("on")


def test_a_worker_has_one_thread() -> None:
    assert _run(["threads"]) == [Finished(1)]


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (unruly.broken_setup, "a worker failed:\n(.|\n)*ArithmeticError: no table"),
        (unruly.dying_setup, "died while starting: died with signal 9"),
    ],
)
def test_a_worker_that_cannot_start_ends_the_run(setup: object, message: str) -> None:
    pool: WorkerPool[str, object] = WorkerPool(setup, 1, LIMITS)  # type: ignore[arg-type]
    with pool, pytest.raises(RuntimeError, match=message):
        list(pool.run(["echo:1"]))


def test_leaving_the_pool_in_the_middle_ends_its_workers() -> None:
    pool: WorkerPool[str, object] = WorkerPool(unruly.setup, 2, LIMITS)
    with pool:
        results: Iterator[tuple[int, Outcome[object]]] = pool.run(["pid", "sleep:60", "sleep:60"])
        _, outcome = next(results)
        assert isinstance(outcome, Finished)
        assert isinstance(outcome.value, int)
        assert _alive(outcome.value)
    assert _await_end(outcome.value)


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "from harness.run.isolate import WorkerPool\n"
        "from tests.harness.run import unruly\n"
        "pool = WorkerPool(unruly.setup, 1)\n"
        "for _, outcome in pool.run(['pid', 'sleep:60']):\n"
        "    print(outcome.value, flush=True)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert _await_end(worker)


def test_limits_and_sizes_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="limits must be positive"):
        Limits(time_limit_s=0)
    with pytest.raises(UsageError, match="0 workers"):
        WorkerPool(unruly.setup, 0)


def test_each_worker_has_an_environment_of_its_own_and_its_successor_takes_it_over() -> None:
    slots = [{"NEURON_RT_VISIBLE_CORES": "4"}, {"NEURON_RT_VISIBLE_CORES": "5"}]
    pool: WorkerPool[str, object] = WorkerPool(unruly.setup, 2, LIMITS, environments=slots)
    ask = "environment:NEURON_RT_VISIBLE_CORES"
    with pool:
        seen = {outcome for _, outcome in pool.run([ask] * 12)}
        assert seen <= {Finished("4"), Finished("5")}
        list(pool.run([f"die:{signal.SIGKILL.value}"] * 2))
        again = [outcome for _, outcome in pool.run(["sleep:0.2", ask, "sleep:0.2", ask, ask])]
        held = [worker.environment for worker in pool._workers]
    assert pool.num_replaced == 2
    assert {o for o in again if o != Finished(None)} <= {Finished("4"), Finished("5")}
    assert sorted(environment["NEURON_RT_VISIBLE_CORES"] for environment in held) == ["4", "5"]


def test_too_few_environments_are_refused() -> None:
    with pytest.raises(UsageError, match="2 workers, 1 environments"):
        WorkerPool(unruly.setup, 2, LIMITS, environments=[{"A": "1"}])


def test_a_killed_worker_that_is_slow_to_end_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine under load the kernel may take seconds to reap; here it gets none at all."""
    monkeypatch.setattr("harness.run.isolate._END_LIMIT_S", 0.0)
    pool: WorkerPool[str, object] = WorkerPool(unruly.setup, 1, LIMITS)
    for _ in range(5):
        with pool:
            ((_, outcome),) = pool.run(["pid"])
        assert isinstance(outcome, Finished)
        assert _await_end(int(str(outcome.value)))
