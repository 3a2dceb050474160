"""Which rank does what: cp ranks share a batch, ep ranks share the experts (port.md R10-R12)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

__all__ = ["Topology"]


@dataclass(frozen=True, slots=True)
class Topology:
    """`num_batches` tensor-parallel groups of `cp` ranks; all ranks together hold the experts.

    Ranks are numbered group by group: rank r is number r % cp of the group that runs batch
    r // cp. One batch is the port's "one TP group"; cp=1 with more batches is DP attention.
    """

    cp: int
    num_batches: int = 1

    @classmethod
    def of(cls, settings: EngineSettings) -> Topology:
        """The ranks that settings ask for.

        Raises:
            UsageError: the expert group is no whole number of tensor-parallel groups.
        """
        return cls.sharing(settings.cp, settings.ep)

    @classmethod
    def sharing(cls, cp: int, ep: int) -> Topology:
        """cp ranks a batch, ep ranks that share the experts (0: the same); raises as `of`."""
        ep = ep or cp
        if ep % cp:
            raise UsageError(
                f"ep={ep} with cp={cp}: the expert group holds whole cp groups; leave ep out or "
                f"give ep={cp} (one batch on all ranks), or a multiple of {cp} (one batch for "
                f"each {cp} ranks; cp=1 is DP attention)"
            )
        return cls(cp, ep // cp)

    @property
    def num_ranks(self) -> int:
        """Ranks in all, which is the size of the expert group."""
        return self.cp * self.num_batches

    def batch_of(self, rank: int) -> int:
        """The batch a rank works on."""
        return rank // self.cp

    def ranks_of(self, batch: int) -> range:
        """The ranks that work on a batch."""
        return range(batch * self.cp, (batch + 1) * self.cp)
