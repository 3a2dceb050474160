"""What runs in the process of one rank. Preloaded by the forkserver, so torch is imported once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.device.neuron import open_device
from engine.graphs.region_times import report_regions
from engine.parallel.host_memory import MemoryPaths, weight_source
from engine.parallel.mailbox import MailboxReader
from engine.parallel.message import Message, Serving
from engine.parallel.patience import COMPILE_LIMIT_S
from engine.parallel.rank_groups import CollectiveError, distributed_groups
from engine.parallel.ring import CollectiveRing
from engine.parallel.topology import Topology
from engine.worker import Worker
from harness.core.child_processes import remove_temporary_directory_of_parent
from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError

__all__ = ["RankPipes", "RankSpec", "die_with_parent", "join_group", "rank_main", "serve_messages"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank is told when it starts.

    Attributes:
        store_port: of the parent's key-value store on the loopback interface.
        num_threads: torch threads.
        times_regions: it reports times of regions when it stops (rank 0 of a timed run).
        memory: what it shares with the other processes of its instance.
        group_timeout_s: after which a collective gives up; the parent's limit comes first.
    """

    rank: int
    size: int
    settings: EngineSettings
    config: ModelConfig
    limits: EngineLimits
    store_port: int
    num_threads: int
    group_timeout_s: float
    memory: MemoryPaths
    times_regions: bool = False


@dataclass(frozen=True, slots=True)
class RankPipes:
    """A rank's ends.

    Attributes:
        answers: what it has to say, to the parent.
        bell: a byte for each message in the mailbox.
        lifeline: nothing is ever sent on it; its end is the parent's end.
    """

    answers: Connection
    bell: Connection
    lifeline: Connection


def rank_main(spec: RankSpec, pipes: RankPipes, ring_buffer: Any) -> None:
    """Serve step plans until the parent says stop or is gone.

    Messages to the parent: ("ready", None), ("compiling", (kind of a region, collectives entered
    before)), ("done", StepOutput), ("refused", arguments of the InputError), ("error", (monotonic
    ns, is_collective, traceback)).
    """
    die_with_parent(pipes.lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    connection = pipes.answers
    try:
        _serve(spec, pipes, CollectiveRing(ring_buffer))
    except (EOFError, BrokenPipeError):
        # The parent is gone: there is nobody to tell.
        os._exit(1)
    except InputError as error:
        connection.send(("refused", (error.file, error.field, error.value, error.remedy)))
        _leave(connection)
    except BaseException as error:
        is_collective = isinstance(error, CollectiveError)
        report = (time.monotonic_ns(), is_collective, traceback.format_exc())
        connection.send(("error", report))
        _leave(connection)


def serve_messages(worker: Serving, spec: RankSpec, pipes: RankPipes) -> None:
    """Do what the mailbox says until it says stop; answer where it is this rank's to answer."""
    topology = Topology.of(spec.settings)
    batch = topology.batch_of(spec.rank)
    mailbox = MailboxReader(spec.memory.mailbox, spec.rank, spec.size, pipes.bell.fileno())
    pipes.answers.send(("ready", None))
    while True:
        message = Message.decode(mailbox.receive())
        if message.method == "stop":
            return
        answer = message.run_on(worker, batch)
        if spec.rank in message.answering(topology):
            pipes.answers.send(("done", answer))


def _leave(connection: Connection) -> None:
    # Leaving a half-broken gloo group in order may block; the parent has been told.
    connection.close()
    sys.stdout.flush()
    os._exit(1)


def _serve(spec: RankSpec, pipes: RankPipes, ring: CollectiveRing) -> None:
    torch.set_num_threads(spec.num_threads)
    device = open_device(spec.settings.device, spec.rank)
    backend, limit_s = device.collective_backend, spec.group_timeout_s
    if not spec.settings.enforce_eager:
        # Torch's groups do not know that a rank compiles. The parent does, and ends one that hangs.
        limit_s += COMPILE_LIMIT_S
    join_group(backend, spec.store_port, spec.rank, spec.size, limit_s)
    topology, memory = Topology.of(spec.settings), spec.memory
    exchanges = memory.open_exchanges(topology, spec.rank, spec.group_timeout_s)
    group, experts = distributed_groups(topology, spec.rank, ring, exchanges)
    checkpoint = spec.settings.checkpoint
    source = weight_source(checkpoint, spec.config, memory.tables, spec.rank, spec.size)
    worker = Worker(spec.settings, spec.config, spec.limits, group, device, source, experts=experts)

    def announce(kind: str) -> None:
        for exchange in exchanges:
            exchange.note_compilation()
        pipes.answers.send(("compiling", (kind, ring.num_entered)))

    worker.announce_compilation(announce)
    if spec.times_regions:
        worker.start_region_timing()
    serve_messages(worker, spec, pipes)
    report_regions(worker.region_times)
    dist.destroy_process_group()


def join_group(backend: str, port: int, rank: int, size: int, timeout_s: float) -> None:
    """Initialise torch.distributed through the store at a port of the loopback interface."""
    # Without an interface gloo resolves the host's name, which may take seconds.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def die_with_parent(lifeline: Connection) -> None:
    """End with the parent, also inside a collective (a thread) and while stopped (the kernel)."""

    def watch() -> None:
        _set_death_signal(signal.SIGKILL)
        wait([lifeline])
        # The fork server ends now too, and would take this process along in the middle of it.
        _set_death_signal(0)
        remove_temporary_directory_of_parent()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        # The forkserver is this process's parent and ends when nobody holds its lifeline, of
        # which every child gets a copy: give it back, or a stopped rank would keep it alive.
        alive_fd = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
        if alive_fd is not None:
            os.close(alive_fd)


def _set_death_signal(number: int) -> None:
    """What the kernel sends this process when its parent ends; 0: nothing more of this thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
