"""Ranks that torchrun started, on one host or on several: rank 0 leads, the others follow.

    torchrun --nnodes 2 --node-rank K --nproc-per-node 32 --master-addr HOST --master-port PORT \\
        -m harness.cli.main generate --checkpoint DIR --cp 64 …

Every rank runs the same command. Rank 0 schedules and is a rank itself; the others serve its steps
in the constructor of their engine and leave the program with it. Plans travel through torch's
key-value store, collectives through torch.distributed. A rank that fails writes what it knows
into the store, so that rank 0 can say who was first; every rank ends with the exit code of a
RankError. torchrun itself exits with 1 and lists these codes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.device.neuron import open_device
from engine.engram.shared_tables import create_table_segment
from engine.parallel.executor import agreed_outputs
from engine.parallel.failure import Failure, blame, ring_report
from engine.parallel.host_memory import weight_source
from engine.parallel.launch import Launch
from engine.parallel.message import Message
from engine.parallel.patience import COMPILE_LIMIT_S
from engine.parallel.rank_groups import CollectiveError, distributed_groups
from engine.parallel.ring import RING_BYTES, CollectiveRing
from engine.parallel.store_link import Report, SilenceError, StoreLink
from engine.parallel.topology import Topology
from engine.schedule.plan import DraftPlan, StepPlan
from engine.weights.shard_check import check_shards
from engine.worker import DraftOutput, StepOutput, Worker
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode, RankError, UsageError

__all__ = ["TerminatedError", "TorchrunExecutor", "first_cause"]

_START_LIMIT_S = 120.0
_GRACE_S = 3.0
# Followers end with the engine they served, so that a second one would find none.
_HAS_SERVED = threading.Event()


class TerminatedError(RankError):
    """torchrun sent SIGTERM: another rank has failed, or torchrun itself is ended."""


class TorchrunExecutor:
    """This process's rank, and on rank 0 the lead; see engine.parallel.executor.Executor.

    Raises:
        UsageError: torchrun started another number of ranks than the settings have, or this
            process has opened an engine before.
        RankError: a rank did not come up.
        SystemExit: on other ranks than 0, when rank 0 closes its engine.
    """

    def __init__(
        self,
        settings: EngineSettings,
        config: ModelConfig,
        limits: EngineLimits,
        launch: Launch,
    ) -> None:
        self._topology = Topology.of(settings)
        launch.check(self._topology)
        if dist.is_initialized() or _HAS_SERVED.is_set():
            raise UsageError(
                "torchrun's ranks serve one engine, this command opens another: give it one "
                "setting, or start it without torchrun"
            )
        _HAS_SERVED.set()
        self._launch = launch
        self._limit_s = settings.time_limit_s
        self._buffer = bytearray(RING_BYTES)
        self._ended = False
        device = open_device(settings.device, launch.local_rank)
        backend = device.collective_backend
        # A rank that compiles is no silent one. Ranks over gloo tell each other through the store
        # and still miss a silent one after the limit; on a device nobody can wait that way, so
        # that a rank that hangs, unlike one that dies, is missed only after a graph's limit.
        longest_s = self._limit_s + (0.0 if settings.enforce_eager else COMPILE_LIMIT_S)
        self._link = _join(launch, backend, self._limit_s, longest_s)
        tells = backend == "gloo" and not settings.enforce_eager
        with _ends_when_told(launch.rank), self._reporting():
            if launch.local_rank == 0:
                check_shards(settings.checkpoint)  # each host reads files of its own
            ring = CollectiveRing(self._buffer)
            group, experts = distributed_groups(
                self._topology, launch.rank, ring, notice=self._link if tells else None
            )
            with _host_tables(config, launch, self._link) as tables:
                self._worker = Worker(
                    settings,
                    config,
                    limits,
                    group,
                    device,
                    weight_source(
                        settings.checkpoint, config, tables, launch.local_rank, launch.local_size
                    ),
                    experts=experts,
                )
                if tells:
                    self._worker.announce_compilation(self._link.note_compilation)
                self._link.say_ready()
                # Nobody lets go of the tables before everybody has mapped them.
                self._require_ready()
            if launch.rank:
                self._follow()
        if launch.rank:
            raise SystemExit(0)
        self._link.start_leading()

    def execute(self, plans: Sequence[StepPlan]) -> tuple[StepOutput, ...]:
        """See Executor."""
        compared = tuple(plan.want_logits for plan in plans)
        return self._lead(Message("execute", tuple(plans), compared), compared)

    def propose(self, plans: Sequence[DraftPlan]) -> tuple[DraftOutput, ...]:
        """See Executor."""
        compared = (True,) * len(plans)
        return self._lead(Message("propose", tuple(plans), compared), compared)

    def close(self) -> None:
        """Let the others go; idempotent."""
        if self._ended:
            return
        self._ended = True
        self._link.publish(Message("stop"))
        self._link.close()
        dist.destroy_process_group()

    def _lead(self, message: Message, compared: Sequence[bool]) -> tuple[Any, ...]:
        with _ends_when_told(0), self._reporting():
            number = self._link.publish(message)
            own = message.run_on(self._worker, 0)
            others = [rank for rank in message.answering(self._topology) if rank]
            outputs = {0: own, **self._link.collect(number, others)}
            # Every rank has met this one in a collective of this message.
            self._link.forget_until(number)
        return agreed_outputs(outputs, self._topology, compared)

    def _follow(self) -> None:
        batch = self._topology.batch_of(self._launch.rank)
        self._link.start_following(lambda: os._exit(ExitCode.RANK))
        while True:
            message = self._link.receive()
            if message.method == "stop":
                break
            output = message.run_on(self._worker, batch)
            if self._launch.rank in message.answering(self._topology):
                self._link.answer(output)
        self._ended = True
        self._link.close()
        dist.destroy_process_group()

    def _require_ready(self) -> None:
        late = self._link.wait_until_ready(_START_LIMIT_S)
        if late:
            raise SilenceError(f"ranks {late} did not come up")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """What goes wrong within is told to rank 0 and becomes a RankError."""
        try:
            yield
        except UsageError as error:
            self._ended = True
            # The others wait for this rank, and would not learn why it does not come.
            failure = Failure(self._launch.rank, f"refuses: {error}", "", time.time_ns(), False)
            self._link.report(failure, bytes(self._buffer))
            raise
        except Exception as error:
            self._ended = True
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        _ignore_termination()
        rank = self._launch.rank
        is_consequence = isinstance(error, (CollectiveError, SilenceError, TerminatedError))
        told = error.reason if isinstance(error, RankError) else "raised an exception"
        trace = "".join(traceback.format_exception(error))
        failure = Failure(rank, told, trace, time.time_ns(), is_consequence)
        self._link.report(failure, bytes(self._buffer))
        if rank:
            # Gone at once, so that nobody waits in a collective for it.
            raise RankError(rank, told if not is_consequence else f"ends: {error}", "") from error
        reports = {0: (failure, bytes(self._buffer)), **self._link.reports(_GRACE_S)}
        raise first_cause(reports, self._launch.size, self._limit_s) from error


def first_cause(reports: Mapping[int, Report], size: int, limit_s: float) -> RankError:
    """Whom the reports blame: a rank with a failure of its own, else one that reports nothing."""
    rings = [reports[rank][1] if rank in reports else bytes(RING_BYTES) for rank in range(size)]
    report = ring_report(rings)
    causes = [failure for failure, _ in reports.values() if not failure.is_collective]
    if causes:
        return blame(causes).as_error(report)
    silent = [rank for rank in range(size) if rank not in reports]
    if silent:
        reason = f"died without a word, or gave no answer within {limit_s:g} s"
        return RankError(silent[0], reason, report)
    return blame([failure for failure, _ in reports.values()]).as_error(report)


def _join(launch: Launch, backend: str, limit_s: float, longest_s: float) -> StoreLink:
    """Meet the others; `longest_s` is what torch gives a collective."""
    if launch.is_on_loopback:
        # Without an interface gloo resolves the host's name, which may take seconds.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = timedelta(seconds=limit_s)
    meeting = rendezvous("env://", launch.rank, launch.size, timeout=timeout)
    store, rank, size = next(meeting)
    dist.init_process_group(
        backend,
        store=PrefixStore("collectives", store),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=longest_s),
    )
    return StoreLink(PrefixStore("engine", store), rank, size, limit_s)


@contextmanager
def _host_tables(config: ModelConfig, launch: Launch, link: StoreLink) -> Iterator[str]:
    """Path of the host's Engram tables, made by its first rank; "" without Engram."""
    key = f"tables/{launch.node}"
    if launch.local_rank:
        yield link.get(key)
        return
    segment = create_table_segment(config)
    link.set(key, segment.path if segment else "")
    try:
        yield segment.path if segment else ""
    finally:
        if segment:
            segment.forget()


@contextmanager
def _ends_when_told(rank: int) -> Iterator[None]:
    """SIGTERM from torchrun ends what runs within as the failure of another rank."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        _ignore_termination()
        raise TerminatedError(rank, "was told to end: another rank failed, or torchrun is ended")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, before)


def _ignore_termination() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
