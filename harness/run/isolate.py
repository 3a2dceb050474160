"""Work in pre-forked processes: a crash or a hang costs one task and one worker, not the run.

Workers come from a fork server that has torch loaded, so that a replacement starts in tens of
milliseconds. Each has one thread, a time limit a task and a memory limit. They end when their
parent does, however that ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Generic, Self, TypeVar

from harness.core.child_processes import remove_temporary_directory_of_parent
from harness.core.errors import (
    ExitCode,
    HarnessError,
    MissingEvidenceError,
    UsageError,
    VacuousError,
)

__all__ = ["Crashed", "Finished", "Limits", "Outcome", "Raised", "TimedOut", "WorkerPool"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Task], Result]

_ERRORS: dict[ExitCode, type[HarnessError]] = {
    error.exit_code: error for error in (UsageError, MissingEvidenceError, VacuousError)
}
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_JOIN_LIMIT_S = 2.0
# A killed process is certain to end, but on a machine with ten others a core not within seconds.
_END_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use.

    Attributes:
        time_limit_s: for one task.
        start_limit_s: until a new worker is ready (imports, op tables).
        memory_limit_bytes: data segment beyond what the worker holds when ready.
    """

    time_limit_s: float = 120.0
    start_limit_s: float = 120.0
    memory_limit_bytes: int = 6 << 30

    def __post_init__(self) -> None:
        if min(self.time_limit_s, self.start_limit_s, self.memory_limit_bytes) <= 0:
            raise UsageError(f"limits must be positive: {self}")


@dataclass(frozen=True, slots=True)
class Finished(Generic[Result]):
    """The task returned."""

    value: Result


@dataclass(frozen=True, slots=True)
class Raised:
    """The task raised; the worker lives on.

    Attributes:
        exit_code: of a HarnessError, which a user may see without its traceback; else None.
    """

    message: str
    traceback: str
    exit_code: ExitCode | None

    def as_error(self) -> Exception:
        """What to raise in the parent: errors that know an exit code keep it."""
        if self.exit_code is None:
            return RuntimeError(f"a worker failed:\n{self.traceback}")
        return _ERRORS.get(self.exit_code, UsageError)(self.message)


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker died."""

    message: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The worker was ended at its time limit."""

    message: str


Outcome = Finished[Result] | Raised | Crashed | TimedOut


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: connection.Connection
    deadline_s: float
    environment: Mapping[str, str]
    ready: bool = False
    task: int | None = None

    def end(self) -> None:
        """Kill and reap; one that the kernel still holds is left to the fork server."""
        self.process.kill()
        self.process.join(_END_LIMIT_S)
        self.pipe.close()
        if self.process.exitcode is not None:
            self.process.close()


@dataclass(slots=True)
class WorkerPool(Generic[Task, Result]):
    """A fixed number of workers. A context manager; leaving it ends them all.

    Args:
        setup: run once in each worker; returns the function that does a task. Picklable.
        num_workers: at least 1.
        preload: modules the fork server imports before it forks anyone.
        environments: one a worker, set before its setup; a worker that replaces another takes
            over that one's. Empty: nothing is set.
    """

    setup: Callable[[], Work[Task, Result]]
    num_workers: int
    limits: Limits = field(default_factory=Limits)
    preload: Sequence[str] = ("torch",)
    environments: Sequence[Mapping[str, str]] = ()
    num_replaced: int = 0
    _workers: list[_Worker] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise UsageError(f"{self.num_workers} workers: at least 1 is needed")
        if self.environments and len(self.environments) < self.num_workers:
            raise UsageError(f"{self.num_workers} workers, {len(self.environments)} environments")
        _start_fork_server(self.preload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every worker; idempotent."""
        while self._workers:
            self._workers.pop().end()

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome[Result]]]:
        """(index, outcome) of every task, in the order they end.

        Raises:
            RuntimeError: a worker could not be started; its traceback is in the message.
        HarnessError: the setup found the request or the environment wrong.
        """
        waiting = deque(range(len(tasks)))
        num_open = len(tasks)
        while num_open:
            self._hand_out(tasks, waiting, num_open)
            for worker in self._wait():
                task = worker.task
                outcome = self._outcome_of(worker)
                if outcome is not None and task is not None:
                    num_open -= 1
                    yield task, outcome

    def _hand_out(self, tasks: Sequence[Task], waiting: deque[int], num_open: int) -> None:
        while len(self._workers) < min(self.num_workers, num_open):
            self._workers.append(self._start())
        for worker in self._workers:
            if worker.ready and worker.task is None and waiting:
                worker.task = waiting.popleft()
                worker.deadline_s = time.monotonic() + self.limits.time_limit_s
                # One that died while idle shows in `_wait`, where its pipe is at its end.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    worker.pipe.send(tasks[worker.task])

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        environment = self._free_environment()
        process = context.Process(
            target=_serve,
            args=(theirs, self.setup, self.limits.memory_limit_bytes, environment),
            daemon=True,
        )
        process.start()
        theirs.close()
        deadline_s = time.monotonic() + self.limits.start_limit_s
        return _Worker(process, ours, deadline_s, environment)

    def _free_environment(self) -> Mapping[str, str]:
        taken = [worker.environment for worker in self._workers]
        return next((free for free in self.environments if free not in taken), {})

    def _wait(self) -> list[_Worker]:
        """Workers that have said something, died, or passed their deadline."""
        busy = [w for w in self._workers if w.task is not None or not w.ready]
        nearest_s = min(worker.deadline_s for worker in busy)
        timeout_s = max(0.0, nearest_s - time.monotonic())
        speaking = connection.wait([worker.pipe for worker in busy], timeout_s)
        now_s = time.monotonic()
        return [w for w in busy if w.pipe in speaking or w.deadline_s <= now_s]

    def _outcome_of(self, worker: _Worker) -> Outcome[Result] | None:
        """What became of the worker's task; None where it only got ready."""
        if not worker.pipe.poll():
            return self._timed_out(worker)
        try:
            message = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._died(worker)
        if not worker.ready:
            if isinstance(message, Raised):
                self._drop(worker)
                raise message.as_error()
            worker.ready = True
            return None
        worker.task = None
        outcome: Outcome[Result] = message
        return outcome

    def _timed_out(self, worker: _Worker) -> TimedOut:
        was_ready = worker.ready
        self._drop(worker)
        if not was_ready:
            raise RuntimeError(f"a worker was not ready within {self.limits.start_limit_s:g} s")
        return TimedOut(f"no result within {self.limits.time_limit_s:g} s; the worker was ended")

    def _died(self, worker: _Worker) -> Crashed:
        worker.process.join(_JOIN_LIMIT_S)
        reason = _ending(worker.process.exitcode)
        was_ready = worker.ready
        self._drop(worker)
        if not was_ready:
            raise RuntimeError(f"a worker died while starting: {reason}")
        return Crashed(f"the worker {reason}")

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.end()
        self.num_replaced += 1


def _ending(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its pipe without ending"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        return f"died with signal {-exitcode} ({signal.Signals(-exitcode).name})"
    except ValueError:
        return f"died with signal {-exitcode}"


def _start_fork_server(preload: Sequence[str]) -> None:
    """The server inherits the environment once: math libraries get one thread in every worker."""
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(
    pipe: connection.Connection,
    setup: Callable[[], Work[Any, Any]],
    memory_limit_bytes: int,
    environment: Mapping[str, str],
) -> None:
    """A worker's life: get ready, then one answer a task until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    try:
        work = setup()
        _limit_memory(memory_limit_bytes)
    except Exception as error:
        pipe.send(_raised(error))
        return
    pipe.send("ready")
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            answer: Finished[Any] | Raised = Finished(work(task))
        except Exception as error:
            answer = _raised(error)
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


def _end_with_parent() -> None:
    """A worker in the middle of a task sees no closed pipe, and its fork server outlives the
    parent as long as one worker does: so each watches for itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        remove_temporary_directory_of_parent()
        os.kill(os.getpid(), signal.SIGKILL)


def _raised(error: Exception) -> Raised:
    text = "".join(traceback.format_exception(error))
    if isinstance(error, HarnessError):
        return Raised(str(error), text, error.exit_code)
    return Raised(f"{type(error).__name__}: {error}", text, None)


def _limit_memory(limit_bytes: int) -> None:
    """RLIMIT_DATA, not _AS: torch maps far more address space than it ever touches."""
    with open("/proc/self/status", encoding="ascii") as status:
        held_kib = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = held_kib * 1024 + limit_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
