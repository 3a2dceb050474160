"""Times of bare collectives between processes, without a model."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from harness.core.errors import RankError
from harness.run.microbench import Series, measure

__all__ = ["ProbeSpec", "probe_collectives"]

_KINDS = ("all_reduce", "all_gather")


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """What each rank does.

    Attributes:
        device: "cpu" (gloo) or "neuron" (one core a rank).
        sizes: bytes of a rank's part, multiples of 4.
    """

    device: str
    ranks: int
    sizes: tuple[int, ...]
    repeats: int
    time_limit_s: float = 600.0


def probe_collectives(spec: ProbeSpec) -> tuple[Series, ...]:
    """All-reduce and all-gather by size, as rank 0 sees them; the ranks have ended when it returns.

    Raises:
        RankError: a rank died, or gave no answer within the limit.
    """
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe(duplex=False) for _ in range(spec.ranks)]
    processes = [
        context.Process(
            target=_rank_main, args=(spec, rank, store.port, pipes[rank][1]), daemon=True
        )
        for rank in range(spec.ranks)
    ]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()
        return _answers(spec, [ours for ours, _ in pipes], processes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            if process.pid is not None:
                process.join()


def _answers(
    spec: ProbeSpec, connections: Sequence[Connection], processes: Sequence[Any]
) -> tuple[Series, ...]:
    deadline = time.monotonic() + spec.time_limit_s
    found: list[tuple[Series, ...]] = []
    for rank, connection in enumerate(connections):
        if not connection.poll(max(0.0, deadline - time.monotonic())):
            raise RankError(rank, f"gave no answer within {spec.time_limit_s:g} s")
        try:
            answer = connection.recv()
        except EOFError:
            processes[rank].join(5)
            raise RankError(rank, f"exited with code {processes[rank].exitcode}") from None
        if isinstance(answer, str):
            raise RankError(rank, "raised an exception", answer)
        found.append(answer)
    return found[0]


def _rank_main(spec: ProbeSpec, rank: int, port: int, connection: Connection) -> None:
    torch.set_num_threads(1)
    try:
        connection.send(_measured(spec, rank, port))
    except Exception:
        import traceback

        connection.send(traceback.format_exc())
    finally:
        connection.close()


def _measured(spec: ProbeSpec, rank: int, port: int) -> tuple[Series, ...]:
    timeout = timedelta(seconds=spec.time_limit_s)
    on_device = spec.device != "cpu"
    if on_device:
        face = torch.get_device_module(spec.device)
        face.set_device(rank)
        wait, device = face.synchronize, torch.device(spec.device, rank)
    else:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        wait, device = _nothing, torch.device("cpu")
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group(
        "neuron" if on_device else "gloo",
        store=store,
        rank=rank,
        world_size=spec.ranks,
        timeout=timeout,
    )
    try:
        return tuple(_one(spec, kind, size, device, wait) for kind in _KINDS for size in spec.sizes)
    finally:
        dist.destroy_process_group()


def _nothing() -> None:
    """The CPU's collectives return when they are done."""


def _one(spec: ProbeSpec, kind: str, size: int, device: torch.device, wait: Any) -> Series:
    part = torch.ones(size // 4, dtype=torch.float32).to(device)
    parts = [torch.empty_like(part) for _ in range(spec.ranks)]

    def call() -> None:
        if kind == "all_reduce":
            dist.all_reduce(part.clone())
        else:
            dist.all_gather(parts, part)

    samples = measure(call, wait, time.perf_counter_ns, repeats=spec.repeats)
    return Series(kind, size, spec.ranks, samples, {})
