"""A rank's ends of its groups when ranks are processes: shared memory, gloo or NeuronCores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from engine.parallel.group import Group, SoloGroup
from engine.parallel.patience import Patience
from engine.parallel.ring import CollectiveRing
from engine.parallel.shared_exchange import SharedExchange
from engine.parallel.topology import Topology

__all__ = [
    "CollectiveError",
    "CompilationNotice",
    "GatheringGroup",
    "SharedMemoryGroup",
    "distributed_groups",
]

_LOOK_S = 1.0  # so often, at most, the others are asked whether they compile


class CollectiveError(RuntimeError):
    """A collective failed, most likely because another rank is gone."""


class CompilationNotice(Protocol):
    """What ranks without a parent know of each other's compiling."""

    def take_back(self) -> None:
        """This rank compiles no longer."""

    def patience(self) -> Patience:
        """For a collective that begins now."""


class GatheringGroup(Group):
    """The rank's end of a torch.distributed group: gloo over sockets, or NeuronCores.

    Args:
        members: process group of torch; None is that of all ranks.
        notice: None where the limit of torch's group is the only one.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        ring: CollectiveRing,
        members: dist.ProcessGroup | None = None,
        notice: CompilationNotice | None = None,
    ) -> None:
        super().__init__(rank, size, ring)
        self._members = members
        self._notice = notice

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        # bf16 travels as bytes: every backend moves them, and nothing is summed on the way.
        flat = part.reshape(-1).view(torch.uint8) if part.numel() else part
        received = [torch.empty_like(flat) for _ in range(self.size)]
        self._carry_out(partial(dist.all_gather, received, flat, group=self._members))
        return [piece.view(part.dtype).view(part.shape) for piece in received]

    def _deal(self, blocks: torch.Tensor) -> list[torch.Tensor]:
        # Summed here in rank order and not on the way: the same bits as ranks in one process.
        flat = blocks.reshape(self.size, -1).view(torch.uint8)
        received = torch.empty_like(flat)
        self._carry_out(partial(dist.all_to_all_single, received, flat, group=self._members))
        return list(received.view(blocks.dtype).view(blocks.shape))

    def _carry_out(self, collective: Callable[..., Any]) -> None:
        try:
            if self._notice is None:
                collective()
            else:
                self._notice.take_back()
                _wait_for(collective(async_op=True), self._notice.patience())
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error


def _wait_for(work: Any, patience: Patience) -> None:
    """Raises RuntimeError where the collective failed, or patience is over."""
    while True:
        try:
            work.wait(timedelta(seconds=_LOOK_S))
        except RuntimeError:
            # It may have ended, well or not, just after the wait was given up.
            if work.is_completed():
                work.wait()
                return
            if not patience.left_s():
                raise
        else:
            return


class SharedMemoryGroup(Group):
    """The rank's end of a group of CPU ranks on one host (engine.parallel.shared_exchange)."""

    def __init__(
        self, rank: int, size: int, ring: CollectiveRing, exchange: SharedExchange
    ) -> None:
        super().__init__(rank, size, ring)
        self._shared = exchange

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        try:
            return self._shared.gather(part, self.label)
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error


def distributed_groups(
    topology: Topology,
    rank: int,
    ring: CollectiveRing,
    exchanges: Sequence[SharedExchange] = (),
    notice: CompilationNotice | None = None,
) -> tuple[Group, Group]:
    """The ranks that share a rank's batch, and those that share the experts.

    Every rank calls it, after torch.distributed was initialised.

    Args:
        exchanges: shared memory for the group of all ranks, then for that of the rank's batch
            where these are fewer and more than one; () to go through torch.distributed.
        notice: of torch.distributed's groups whose ranks may compile and have no parent.
    """
    cp, size = topology.cp, topology.num_ranks
    experts = (
        SharedMemoryGroup(rank, size, ring, exchanges[0])
        if exchanges
        else GatheringGroup(rank, size, ring, notice=notice)
    )
    if topology.num_batches == 1:
        return experts, experts
    if cp == 1:
        return SoloGroup(), experts
    if exchanges:
        return SharedMemoryGroup(rank % cp, cp, ring, exchanges[1]), experts
    batches = [list(topology.ranks_of(batch)) for batch in range(topology.num_batches)]
    # Every rank takes part in making every group; each keeps its own.
    made = [dist.new_group(ranks) for ranks in batches]
    own = made[topology.batch_of(rank)]
    return GatheringGroup(rank % cp, cp, ring, own, notice), experts
