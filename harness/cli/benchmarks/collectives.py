"""An all-reduce between CPU ranks of one host: through shared memory against gloo's sockets."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

from harness.cli.benchmarks.measurement import Figure, source_hash

__all__ = ["collective_figures"]

# Values of fp32: a decode step's row of the real model, and a prefill chunk of 128 rows.
_SIZES = ((7168, 200), (128 * 7168, 15))
_LIMIT_S = 60.0


def collective_figures() -> list[Figure]:
    """Microseconds of a sum in rank order, and how many times gloo's that is, at 2 and 4 ranks."""
    from engine.parallel.rank_groups import GatheringGroup

    against = f"gloo all_gather {source_hash(GatheringGroup)}"
    figures = []
    for num_ranks in (2, 4):
        for num_values, pairs in _SIZES:
            ours_us, theirs_us, ratio = _measured(num_ranks, num_values, pairs)
            name = f"all-reduce {num_values * 4 // 1024} KiB, {num_ranks} ranks"
            figures += [
                Figure(f"{name}: shared memory", ours_us, "us"),
                Figure(f"{name}: gloo", theirs_us, "us"),
                Figure(
                    f"{name}: gloo / shared memory", ratio, "times", ">= 1", ratio >= 1, against
                ),
            ]
    return figures


def _measured(num_ranks: int, num_values: int, pairs: int) -> tuple[float, float, float]:
    from torch._C._distributed_c10d import TCPStore

    from engine.parallel.shared_exchange import create_exchange_segment

    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    segment = create_exchange_segment(num_ranks)
    ours, theirs = context.Pipe(duplex=False)
    ranks = [
        context.Process(
            target=_rank,
            args=(rank, num_ranks, segment.path, store.port, num_values, pairs, theirs),
            daemon=True,
        )
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    theirs.close()
    try:
        result: tuple[float, float, float] = ours.recv()
    finally:
        for process in ranks:
            process.join(_LIMIT_S)
            process.kill()
        segment.forget()
    return result


def _rank(
    rank: int,
    num_ranks: int,
    path: str,
    port: int,
    num_values: int,
    pairs: int,
    answers: Connection,
) -> None:
    """Rank 0 says what it measured: both medians in microseconds and the median ratio."""
    import torch
    import torch.distributed as dist

    from engine.parallel.rank_groups import GatheringGroup, SharedMemoryGroup
    from engine.parallel.rank_process import join_group
    from engine.parallel.ring import RING_BYTES, CollectiveRing
    from engine.parallel.shared_exchange import SharedExchange
    from engine.parallel.shared_segment import SharedSegment

    torch.set_num_threads(1)
    join_group("gloo", port, rank, num_ranks, _LIMIT_S)
    ring = CollectiveRing(bytearray(RING_BYTES))
    exchange = SharedExchange(SharedSegment.open(path), rank, num_ranks, _LIMIT_S)
    shared = SharedMemoryGroup(rank, num_ranks, ring, exchange)
    gloo = GatheringGroup(rank, num_ranks, ring)
    part = torch.full((num_values,), float(rank + 1))
    times: list[tuple[float, float]] = []
    for _ in range(pairs + 3):
        start = time.perf_counter()
        ours = shared.sum(part, "bench")
        between = time.perf_counter()
        theirs = gloo.sum(part, "bench")
        times.append((between - start, time.perf_counter() - between))
        if not torch.equal(ours, theirs):
            raise RuntimeError("the two sums differ")
    if rank == 0:
        kept = times[3:]
        answers.send(
            (
                statistics.median(one for one, _ in kept) * 1e6,
                statistics.median(other for _, other in kept) * 1e6,
                statistics.median(other / one for one, other in kept),
            )
        )
    dist.destroy_process_group()
