"""What the model asks of its group of ranks, counted and logged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

import torch

from engine.parallel.ring import CollectiveRing

__all__ = ["Group", "SoloGroup"]


class Group(ABC):
    """One rank's end of a group.

    Sums are made in rank order from gathered parts, so every rank gets the same bits and N
    processes equal N ranks in one process. A gather with its sum is one collective.

    Attributes:
        counts: collectives by label since `start_step`; the label is "<place>.<layer>".
        label: of the present or last collective.
    """

    def __init__(self, rank: int, size: int, ring: CollectiveRing | None = None) -> None:
        self.rank = rank
        self.size = size
        self.counts: Counter[str] = Counter()
        self.label = ""
        self._ring = ring
        self._step = 0

    def start_step(self, step: int) -> None:
        """Forget the counts of the step before."""
        self.counts.clear()
        self._step = step

    def gather(self, part: torch.Tensor, label: str) -> list[torch.Tensor]:
        """The part of every rank, in rank order. All parts have the same shape and dtype.

        They are valid until the group's next collective, and not to be written.
        A group of one exchanges nothing and counts nothing.
        """
        if self.size == 1:
            return [part]
        return self._noted(self._exchange, part, label)

    def sum(self, part: torch.Tensor, label: str) -> torch.Tensor:
        """The sum over ranks, added in rank order in the part's dtype."""
        return ordered_sum(self.gather(part, label))

    def scatter_sum(self, blocks: torch.Tensor, label: str) -> torch.Tensor:
        """Reduce-scatter: the sum over ranks, in rank order, of block `self.rank`.

        Args:
            blocks: [size, ...], one block for each rank.
        """
        if self.size == 1:
            return blocks[0]
        return ordered_sum(self._noted(self._deal, blocks, label))

    def max(self, part: torch.Tensor, label: str) -> torch.Tensor:
        """The greatest over ranks, element by element."""
        return torch.stack(self.gather(part, label)).amax(dim=0)

    def _noted(
        self,
        collective: Callable[[torch.Tensor], list[torch.Tensor]],
        tensor: torch.Tensor,
        label: str,
    ) -> list[torch.Tensor]:
        self.counts[label] += 1
        self.label = label
        if self._ring is not None:
            self._ring.enter(self._step, label, tensor.dtype, tuple(tensor.shape))
        parts = collective(tensor.contiguous())
        if self._ring is not None:
            self._ring.leave()
        return parts

    @abstractmethod
    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Parts of all ranks in rank order."""

    def _deal(self, blocks: torch.Tensor) -> list[torch.Tensor]:
        """Block `self.rank` of every rank's blocks [size, ...], in rank order."""
        return [theirs[self.rank] for theirs in self._exchange(blocks)]


def ordered_sum(parts: list[torch.Tensor]) -> torch.Tensor:
    """((p0 + p1) + p2) + ..."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class SoloGroup(Group):
    """A group of one."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part]
