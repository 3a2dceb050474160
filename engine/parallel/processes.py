"""Ranks as processes under a parent that never waits longer than its limit.

The parent computes nothing. It lays the plans of a step where every rank of the host reads them,
collects the answers of each batch's first rank, and on the first sign of trouble ends all ranks
and says which one failed and why.
"""

from __future__ import annotations

import multiprocessing
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import TCPStore

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.graphs.region_times import wants_region_timing
from engine.parallel.executor import agreed_outputs
from engine.parallel.failure import (
    Failure,
    blame,
    hung_rank,
    is_stopped,
    may_know_more,
    ring_report,
)
from engine.parallel.host_memory import host_memory
from engine.parallel.mailbox import LagError
from engine.parallel.message import Message
from engine.parallel.patience import COMPILE_LIMIT_S, Patience
from engine.parallel.rank_process import RankPipes, RankSpec, rank_main
from engine.parallel.ring import RING_BYTES, count_entered
from engine.parallel.shared_exchange import can_share
from engine.parallel.topology import Topology
from engine.schedule.plan import DraftPlan, StepPlan
from engine.worker import DraftOutput, StepOutput
from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError, RankError, UsageError

__all__ = ["ProcessExecutor"]

_START_LIMIT_S = 60.0
_COMPILING = object()
_LOOK_S = 1.0  # so often, at least, a rank that compiles is looked at
_GRACE_S = 1.0
_PRELOAD = "engine.parallel.rank_process"
RankMain = Callable[[RankSpec, RankPipes, Any], None]


@dataclass(frozen=True, slots=True)
class _Compilation:
    """A rank's last announcement: of which region, after how many collectives, when it came."""

    region: str
    num_entered: int
    since_s: float


class ProcessExecutor:
    """All rank processes of the settings; see engine.parallel.executor.Executor.

    Args:
        main: what runs in each of them.
        shares_collectives: through shared memory and not torch.distributed; None where it can.

    Raises:
        RankError: a rank did not come up within its limit.
        UsageError: shared memory has no room.
    """

    def __init__(
        self,
        settings: EngineSettings,
        config: ModelConfig,
        limits: EngineLimits,
        *,
        main: RankMain = rank_main,
        shares_collectives: bool | None = None,
    ) -> None:
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
        self._compilations: dict[int, _Compilation] = {}
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._bells: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        threads = settings.num_threads or max(1, torch.get_num_threads() // size)
        start_limit_s = max(_START_LIMIT_S, self._limit_s)
        if shares_collectives is None:
            shares_collectives = settings.device == "cpu" and can_share()
        with host_memory(config, self._topology, exchanges=shares_collectives) as memory:
            self._mailbox = memory.mailbox
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
                        memory=memory.paths_of(rank),
                        times_regions=rank == 0 and wants_region_timing(),
                    )
                    self._start(context, main, spec)
                self._collect(range(size), start_limit_s)
            except BaseException:
                self._kill()
                raise

    @property
    def pids(self) -> list[int]:
        """Process ids, in rank order."""
        return [process.pid for process in self._processes]

    def execute(self, plans: Sequence[StepPlan]) -> tuple[StepOutput, ...]:
        """See Executor.

        Raises:
            UsageError: the ranks have ended, after an earlier failure or `close`.
        """
        compared = tuple(plan.want_logits for plan in plans)
        outputs = self._call(Message("execute", tuple(plans), compared))
        return agreed_outputs(outputs, self._topology, compared)

    def propose(self, plans: Sequence[DraftPlan]) -> tuple[DraftOutput, ...]:
        """See Executor."""
        compared = (True,) * len(plans)
        outputs = self._call(Message("propose", tuple(plans), compared))
        return agreed_outputs(outputs, self._topology, compared)

    def _call(self, message: Message) -> dict[int, Any]:
        """The answer of every rank that gives one."""
        if self._ended:
            raise UsageError("this engine cannot go on, its ranks have ended: open another")
        self._publish(message, self._limit_s)
        return self._collect(message.answering(self._topology), self._limit_s)

    def _publish(self, message: Message, limit_s: float) -> None:
        bells = [bell.fileno() for bell in self._bells]
        try:
            gone = self._mailbox.publish(message.encode(), bells, limit_s)
        except LagError as error:
            self._fail_hung(error.ranks, limit_s)
        else:
            if gone:
                self._fail([self._death(rank) for rank in gone])

    def close(self) -> None:
        """Ask the ranks to stop, then make them; idempotent."""
        if self._ended:
            return
        with suppress(RankError):  # what is to end may fail on the way
            self._publish(Message("stop"), _GRACE_S)
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _start(self, context: Any, main: RankMain, spec: RankSpec) -> None:
        ours, theirs = context.Pipe(duplex=False)
        their_bell, our_bell = context.Pipe(duplex=False)
        process = context.Process(
            target=main,
            args=(spec, RankPipes(theirs, their_bell, self._lifeline), self._rings[spec.rank]),
            name=f"rank {spec.rank}",
            daemon=True,
        )
        process.start()
        theirs.close()
        their_bell.close()
        self._processes.append(process)
        self._connections.append(ours)
        self._bells.append(our_bell)
        self._selector.register(ours, selectors.EVENT_READ, spec.rank)

    def _collect(self, ranks: Sequence[int], limit_s: float) -> dict[int, Any]:
        """One answer of each of the ranks; a failure of any rank ends it."""
        missing = set(ranks)
        answers: dict[int, Any] = {}
        patience = Patience(limit_s, self._anyone_compiles)
        while missing:
            left_s = patience.left_s()
            ready = self._selector.select(min(left_s, _LOOK_S))
            if not ready and not left_s:
                self._fail_hung(sorted(missing), limit_s)
            for key, _ in ready:
                answer = self._receive(key.data)
                if answer is _COMPILING:
                    continue
                if isinstance(answer, Failure):
                    self._fail([answer])
                answers[key.data] = answer
                missing.discard(key.data)
        return answers

    def _receive(self, rank: int) -> Any:
        """An answer, or the Failure that stands in its place."""
        try:
            kind, content = self._connections[rank].recv()
        except (EOFError, OSError):
            return self._death(rank)
        if kind == "compiling":
            region, num_entered = content
            self._compilations[rank] = _Compilation(region, num_entered, time.monotonic())
            return _COMPILING
        if kind == "refused":
            self._kill()
            raise InputError(*content)
        if kind == "error":
            when_ns, is_collective, text = content
            return Failure(rank, "raised an exception", text, when_ns, is_collective)
        return content

    def _anyone_compiles(self) -> bool:
        """A graph may take minutes the first time: the rank that makes it is not silent.

        It makes one until it enters its next collective, and counts as silent when it takes too
        long.
        """
        self._compilations = {
            rank: started
            for rank, started in self._compilations.items()
            if count_entered(self._rings[rank]) == started.num_entered
        }
        now_s = time.monotonic()
        return any(
            now_s - started.since_s < COMPILE_LIMIT_S for started in self._compilations.values()
        )

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

    def _fail(self, failures: list[Failure]) -> NoReturn:
        """Give other ranks a moment to report too, end all, blame the first cause."""
        rings = [bytes(ring) for ring in self._rings]
        known = {failure.rank for failure in failures}
        pending = {
            connection: rank
            for rank, connection in enumerate(self._connections)
            if rank not in known and may_know_more(failures, rings[rank])
        }
        deadline = time.monotonic() + _GRACE_S
        while pending and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(pending), timeout=left):
                rank = pending.pop(connection)  # type: ignore[call-overload]
                answer = self._receive(rank)
                if isinstance(answer, Failure):
                    failures.append(answer)
        rings = [bytes(ring) for ring in self._rings]
        self._kill()
        raise blame(failures).as_error(ring_report(rings))

    def _fail_hung(self, missing: Sequence[int], limit_s: float) -> NoReturn:
        """Blame one; ranks that need not answer may be the reason that others do not."""
        rings = [bytes(ring) for ring in self._rings]
        ranks = range(len(self._processes))
        stopped = {rank for rank in ranks if is_stopped(self.pids[rank])}
        self._kill()
        rank = hung_rank(rings, [*missing, *(set(ranks) - set(missing))], stopped)
        why = ": it is stopped (SIGSTOP or a debugger)" if rank in stopped else ""
        started = self._compilations.get(rank)
        if started is not None and count_entered(rings[rank]) == started.num_entered:
            why = f": it still compiles region {started.region!r} after {COMPILE_LIMIT_S:g} s"
        raise RankError(rank, f"gave no answer within {limit_s:g} s{why}", ring_report(rings))

    def _kill(self) -> None:
        self._ended = True
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        self._selector.close()
        for end in (*self._connections, *self._bells, self._lifeline, self._held_end):
            end.close()
        self._mailbox.close()
