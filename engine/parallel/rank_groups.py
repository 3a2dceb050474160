"""A rank's ends of its groups when ranks are processes: shared memory, gloo or NeuronCores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from engine.parallel.group import Group, SoloGroup
from engine.parallel.ring import CollectiveRing
from engine.parallel.shared_exchange import SharedExchange
from engine.parallel.topology import Topology

__all__ = ["CollectiveError", "GatheringGroup", "SharedMemoryGroup", "distributed_groups"]


class CollectiveError(RuntimeError):
    """A collective failed, most likely because another rank is gone."""


class GatheringGroup(Group):
    """The rank's end of a torch.distributed group: gloo over sockets, or NeuronCores.

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
    topology: Topology, rank: int, ring: CollectiveRing, exchanges: Sequence[SharedExchange] = ()
) -> tuple[Group, Group]:
    """The ranks that share a rank's batch, and those that share the experts.

    Every rank calls it, after torch.distributed was initialised.

    Args:
        exchanges: shared memory for the group of all ranks, then for that of the rank's batch
            where these are fewer and more than one; () to go through torch.distributed.
    """
    cp, size = topology.cp, topology.num_ranks
    experts = (
        SharedMemoryGroup(rank, size, ring, exchanges[0])
        if exchanges
        else GatheringGroup(rank, size, ring)
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
    return GatheringGroup(rank % cp, cp, ring, made[topology.batch_of(rank)]), experts
