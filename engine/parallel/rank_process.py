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
from engine.engram.shared_tables import SharedTables
from engine.graphs.region_times import report_regions
from engine.parallel.group import Group, SoloGroup
from engine.parallel.ring import CollectiveRing
from engine.parallel.shared_segment import SharedSegment
from engine.parallel.topology import Topology
from engine.weights.checkpoint import Checkpoint, TensorSource
from engine.worker import Worker
from harness.core.child_processes import remove_temporary_directory_of_parent
from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError

__all__ = ["RankSpec", "rank_main"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank is told when it starts.

    Attributes:
        store_port: of the parent's key-value store on the loopback interface.
        num_threads: torch threads.
        times_regions: it reports times of regions when it stops (rank 0 of a timed run).
        engram_path: of the shared segment for the Engram tables, "" without Engram.
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
    times_regions: bool = False
    engram_path: str = ""


class CollectiveError(RuntimeError):
    """A collective failed, most likely because another rank is gone."""


class GatheringGroup(Group):
    """The rank's end of a torch.distributed group: gloo over loopback, or NeuronCores.

    Args:
        members: process group of torch; None is that of all ranks.
    """

    def __init__(
        self, rank: int, size: int, ring: CollectiveRing, members: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(rank, size, ring)
        self._members = members

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        # bf16 travels as bytes: every backend moves them, and nothing is summed on the way.
        flat = part.reshape(-1).view(torch.uint8) if part.numel() else part
        received = [torch.empty_like(flat) for _ in range(self.size)]
        try:
            dist.all_gather(received, flat, group=self._members)
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error
        return [piece.view(part.dtype).view(part.shape) for piece in received]

    def _deal(self, blocks: torch.Tensor) -> list[torch.Tensor]:
        # Summed here in rank order and not on the way: the same bits as ranks in one process.
        flat = blocks.reshape(self.size, -1).view(torch.uint8)
        received = torch.empty_like(flat)
        try:
            dist.all_to_all_single(received, flat, group=self._members)
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error
        return list(received.view(blocks.dtype).view(blocks.shape))


def _groups(spec: RankSpec, ring: CollectiveRing) -> tuple[Group, Group]:
    """The ranks that share this rank's batch, and those that share the experts."""
    topology = Topology.of(spec.settings)
    experts = GatheringGroup(spec.rank, spec.size, ring)
    if topology.num_batches == 1:
        return experts, experts
    if topology.cp == 1:
        return SoloGroup(), experts
    batches = [list(topology.ranks_of(batch)) for batch in range(topology.num_batches)]
    # Every rank takes part in making every group; each keeps its own.
    made = [dist.new_group(ranks) for ranks in batches]
    own = topology.batch_of(spec.rank)
    return GatheringGroup(spec.rank % topology.cp, topology.cp, ring, made[own]), experts


def rank_main(
    spec: RankSpec, connection: Connection, lifeline: Connection, ring_buffer: Any
) -> None:
    """Serve step plans until the parent says stop or is gone.

    Messages to the parent: ("ready", None), ("done", StepOutput), ("refused", arguments of the
    InputError), ("error", (monotonic ns, is_collective, traceback)).

    Args:
        lifeline: nothing is ever sent on it; its end is the parent's end.
    """
    _die_with_parent(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    try:
        _serve(spec, connection, CollectiveRing(ring_buffer))
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


def _leave(connection: Connection) -> None:
    # Leaving a half-broken gloo group in order may block; the parent has been told.
    connection.close()
    sys.stdout.flush()
    os._exit(1)


def _serve(spec: RankSpec, connection: Connection, ring: CollectiveRing) -> None:
    torch.set_num_threads(spec.num_threads)
    device = open_device(spec.settings.device, spec.rank)
    _join_group(spec, device.collective_backend)
    group, experts = _groups(spec, ring)
    worker = Worker(
        spec.settings,
        spec.config,
        spec.limits,
        group,
        device,
        _weight_source(spec),
        experts=experts,
    )
    if spec.times_regions:
        worker.start_region_timing()
    connection.send(("ready", None))
    while True:
        method, plan = connection.recv()
        if method == "stop":
            break
        answer = worker.propose(plan) if method == "propose" else worker.execute(plan)
        connection.send(("done", answer))
    report_regions(worker.region_times)
    dist.destroy_process_group()


def _weight_source(spec: RankSpec) -> TensorSource:
    files = Checkpoint(spec.settings.checkpoint)
    if not spec.engram_path:
        return files
    tables = SharedTables(files, SharedSegment.open(spec.engram_path), spec.config)
    tables.fill(spec.rank, spec.size)
    return tables


def _join_group(spec: RankSpec, backend: str) -> None:
    # Without an interface gloo resolves the host's name, which may take seconds.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    timeout = timedelta(seconds=spec.group_timeout_s)
    store = TCPStore("127.0.0.1", spec.store_port, is_master=False, timeout=timeout)
    dist.init_process_group(
        backend, store=store, rank=spec.rank, world_size=spec.size, timeout=timeout
    )


def _die_with_parent(lifeline: Connection) -> None:
    """End with the parent, also inside a collective (a thread) and while stopped (the kernel)."""

    def watch() -> None:
        wait([lifeline])
        remove_temporary_directory_of_parent()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        # The forkserver is this process's parent and ends when nobody holds its lifeline, of
        # which every child gets a copy: give it back, or a stopped rank would keep it alive.
        alive_fd = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
        if alive_fd is not None:
            os.close(alive_fd)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
