"""Ranks as processes under a parent that never waits longer than its limit.

The parent computes nothing. It sends every rank the plan of a step, collects the answers, and
on the first sign of trouble ends all ranks and says which one failed and why.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.engram.shared_tables import create_table_segment
from engine.graphs.region_times import wants_region_timing
from engine.parallel.executor import agreed_outputs
from engine.parallel.failure import Failure, blame, hung_rank, is_stopped, ring_report
from engine.parallel.rank_process import RankSpec, rank_main
from engine.parallel.ring import RING_BYTES
from engine.parallel.topology import Topology
from engine.schedule.plan import DraftPlan, StepPlan
from engine.worker import DraftOutput, StepOutput
from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError, RankError, UsageError

__all__ = ["ProcessExecutor"]

_START_LIMIT_S = 60.0
_GRACE_S = 1.0
_PRELOAD = "engine.parallel.rank_process"


class ProcessExecutor:
    """All rank processes of the settings; see engine.parallel.executor.Executor.

    Raises:
        RankError: a rank did not come up within its limit.
        UsageError: shared memory has no room for the Engram tables.
    """

    def __init__(self, settings: EngineSettings, config: ModelConfig, limits: EngineLimits) -> None:
        self._limit_s = settings.time_limit_s
        self._topology = Topology.of(settings)
        size = self._topology.num_ranks
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([_PRELOAD])
        # The store lives in the parent, so no rank's end can take it along.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._rings = [context.RawArray("b", RING_BYTES) for _ in range(size)]
        self._lifeline, self._held_end = context.Pipe(duplex=False)
        self._ended = False
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        threads = settings.num_threads or max(1, torch.get_num_threads() // size)
        start_limit_s = max(_START_LIMIT_S, self._limit_s)
        tables = create_table_segment(config)
        try:
            for rank in range(size):
                spec = RankSpec(
                    rank=rank,
                    size=size,
                    settings=settings,
                    config=config,
                    limits=limits,
                    store_port=self._store.port,
                    num_threads=threads,
                    group_timeout_s=start_limit_s + 30.0,
                    times_regions=rank == 0 and wants_region_timing(),
                    engram_path=tables.path if tables else "",
                )
                self._start(context, spec)
            self._collect(start_limit_s)
        except BaseException:
            self.close()
            raise
        finally:
            if tables:
                tables.forget()  # the ranks' mappings keep it

    @property
    def pids(self) -> list[int]:
        """Process ids, in rank order."""
        return [process.pid for process in self._processes]

    def execute(self, plans: Sequence[StepPlan]) -> tuple[StepOutput, ...]:
        """See Executor.

        Raises:
            UsageError: the ranks have ended, after an earlier failure or `close`.
        """
        outputs: list[StepOutput] = self._call("execute", plans)
        return agreed_outputs(outputs, self._topology)

    def propose(self, plans: Sequence[DraftPlan]) -> tuple[DraftOutput, ...]:
        """See Executor."""
        outputs: list[DraftOutput] = self._call("propose", plans)
        return agreed_outputs(outputs, self._topology)

    def _call(self, method: str, plans: Sequence[StepPlan] | Sequence[DraftPlan]) -> list[Any]:
        """The answer of every rank's worker."""
        if self._ended:
            raise UsageError("this engine cannot go on, its ranks have ended: open another")
        for rank, connection in enumerate(self._connections):
            try:
                connection.send((method, plans[self._topology.batch_of(rank)]))
            except OSError:
                self._fail([self._death(rank)], self._connections)
        return self._collect(self._limit_s)

    def close(self) -> None:
        """Ask the ranks to stop, then make them; idempotent."""
        if self._ended:
            return
        for connection in self._connections:
            try:
                connection.send(("stop", None))
            except OSError:
                continue  # a rank that is gone needs no telling
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _start(self, context: Any, spec: RankSpec) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=rank_main,
            args=(spec, theirs, self._lifeline, self._rings[spec.rank]),
            name=f"rank {spec.rank}",
            daemon=True,
        )
        process.start()
        theirs.close()
        self._processes.append(process)
        self._connections.append(ours)

    def _collect(self, limit_s: float) -> list[Any]:
        """One answer of every rank, in rank order."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + limit_s
        while len(answers) < len(self._connections):
            waiting = {
                connection: rank
                for rank, connection in enumerate(self._connections)
                if rank not in answers
            }
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail_hung(sorted(waiting.values()), limit_s)
            for connection in ready:
                rank = waiting[connection]  # type: ignore[index]
                answer = self._receive(rank)
                if isinstance(answer, Failure):
                    others = [item for item in waiting if item is not connection]
                    self._fail([answer], others)
                answers[rank] = answer
        return [answers[rank] for rank in range(len(self._connections))]

    def _receive(self, rank: int) -> Any:
        """An answer, or the Failure that stands in its place."""
        try:
            kind, content = self._connections[rank].recv()
        except (EOFError, OSError):
            return self._death(rank)
        if kind == "refused":
            self._kill()
            raise InputError(*content)
        if kind == "error":
            when_ns, is_collective, text = content
            return Failure(rank, "raised an exception", text, when_ns, is_collective)
        return content

    def _death(self, rank: int) -> Failure:
        process = self._processes[rank]
        process.join(_GRACE_S)
        code = process.exitcode
        if code is None:
            reason = "closed its pipe"
        elif code < 0:
            reason = f"died with signal {-code} ({signal.Signals(-code).name})"
        else:
            reason = f"exited with code {code}"
        return Failure(rank, reason, "", 0, False)

    def _fail(self, failures: list[Failure], others: Sequence[Connection]) -> None:
        """Give other ranks a moment to report too, end all, blame the first cause."""
        deadline = time.monotonic() + _GRACE_S
        pending = {
            connection: rank
            for rank, connection in enumerate(self._connections)
            if connection in others and all(rank != failure.rank for failure in failures)
        }
        while pending and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(pending), timeout=left):
                rank = pending.pop(connection)  # type: ignore[call-overload]
                answer = self._receive(rank)
                if isinstance(answer, Failure):
                    failures.append(answer)
        rings = [bytes(ring) for ring in self._rings]
        self._kill()
        first = blame(failures)
        raise first.as_error(ring_report(rings))

    def _fail_hung(self, missing: list[int], limit_s: float) -> None:
        rings = [bytes(ring) for ring in self._rings]
        stopped = {rank for rank in missing if is_stopped(self.pids[rank])}
        self._kill()
        rank = hung_rank(rings, missing, stopped)
        why = ": it is stopped (SIGSTOP or a debugger)" if rank in stopped else ""
        raise RankError(rank, f"gave no answer within {limit_s:g} s{why}", ring_report(rings))

    def _kill(self) -> None:
        self._ended = True
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()
        for end in (self._lifeline, self._held_end):
            end.close()
