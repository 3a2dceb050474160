"""What the processes of one instance share on a host: messages, collectives, Engram tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.config.model import ModelConfig
from engine.engram.shared_tables import SharedTables, create_table_segment
from engine.parallel.mailbox import Mailbox
from engine.parallel.shared_exchange import SharedExchange, create_exchange_segment
from engine.parallel.shared_segment import SharedSegment
from engine.parallel.topology import Topology
from engine.weights.checkpoint import Checkpoint, TensorSource

__all__ = ["HostMemory", "MemoryPaths", "host_memory", "weight_source"]


@dataclass(frozen=True, slots=True)
class MemoryPaths:
    """Where one rank finds what it shares.

    Attributes:
        mailbox: "" where messages come another way.
        tables: "" of a model without Engram.
        exchanges: of the group of all ranks, then of the rank's batch; () for torch.distributed.
    """

    mailbox: str = ""
    tables: str = ""
    exchanges: tuple[str, ...] = ()

    def open_exchanges(
        self, topology: Topology, rank: int, limit_s: float
    ) -> tuple[SharedExchange, ...]:
        """The rank's ends, in the order of the paths."""
        places = ((rank, topology.num_ranks), (rank % topology.cp, topology.cp))
        return tuple(
            SharedExchange(SharedSegment.open(path), own, size, limit_s)
            for path, (own, size) in zip(self.exchanges, places, strict=False)
        )


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The creator's side: `paths_of` for the ranks it starts, `mailbox` to speak to them."""

    topology: Topology
    mailbox: Mailbox
    tables: SharedSegment | None
    everybody: SharedSegment | None
    batches: tuple[SharedSegment, ...]

    def paths_of(self, rank: int) -> MemoryPaths:
        """What a rank opens."""
        exchanges = [self.everybody.path] if self.everybody else []
        if self.batches:
            exchanges.append(self.batches[self.topology.batch_of(rank)].path)
        tables = self.tables.path if self.tables else ""
        return MemoryPaths(self.mailbox.path, tables, tuple(exchanges))


@contextmanager
def host_memory(
    config: ModelConfig, topology: Topology, *, exchanges: bool
) -> Iterator[HostMemory]:
    """Create it for ranks that start, and map it, before the end of the context.

    After that nobody can open anything but the mailbox, which stays its owner's.

    Args:
        exchanges: collectives go through it as well.

    Raises:
        UsageError: shared memory is too full.
    """
    segments: list[SharedSegment] = []

    def kept(segment: SharedSegment) -> SharedSegment:
        segments.append(segment)
        return segment

    try:
        tables = create_table_segment(config)
        if tables is not None:
            kept(tables)
        everybody: SharedSegment | None = None
        batches: tuple[SharedSegment, ...] = ()
        if exchanges:
            everybody = kept(create_exchange_segment(topology.num_ranks))
            if topology.cp > 1 and topology.num_batches > 1:
                batches = tuple(
                    kept(create_exchange_segment(topology.cp)) for _ in range(topology.num_batches)
                )
        yield HostMemory(topology, Mailbox(topology.num_ranks), tables, everybody, batches)
    finally:
        for segment in segments:
            segment.forget()


def weight_source(
    checkpoint: str, config: ModelConfig, tables: str, share: int, num_shares: int
) -> TensorSource:
    """A checkpoint whose Engram tables are the host's, of which this rank has filled its share.

    Args:
        tables: path of their segment, "" without Engram.
        share: of `num_shares` ranks of this host, which one this is.
    """
    files = Checkpoint(checkpoint)
    if not tables:
        return files
    shared = SharedTables(files, SharedSegment.open(tables), config)
    shared.fill(share, num_shares)
    return shared
