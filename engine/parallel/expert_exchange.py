"""How rows reach the ranks that hold their experts, and how sums come back (port.md R14-R17).

Where the expert group is the group that shares the batch, rows are replicated: nothing travels out
and one all-reduce brings the sums. Otherwise hidden rows, expert ids and route weights travel in
one packed all-gather a layer, and one reduce-scatter brings each batch the sums of its own rows.

The packed buffer has the accumulation dtype: fp32 in `fast`, and fp64 in the modes whose sums are
fp64, so that route weights arrive unrounded and results equal those of one rank. Activations and
expert ids below 2^24 are exact in both.

Legend: T rows of this rank's batch, R rows of all batches, d hidden size, k experts a row visits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.parallel.group import Group

__all__ = ["ExpertExchange", "ExpertRows"]


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Rows and where they go: x [T, d], expert_ids [T, k] (-1: nowhere), weights [T, k]."""

    x: torch.Tensor
    expert_ids: torch.Tensor
    weights: torch.Tensor


class ExpertExchange:
    """One rank's end, for all layers.

    Args:
        group: ranks that share this rank's batch.
        experts: ranks that share the experts: whole groups, this rank's among them. The same
            object as `group` where they are the same ranks.

    Attributes:
        capacity: rows an expert takes in one pass of the present step; 0 is no limit.
        num_overflows: experts given more rows than that, on the fullest rank, added over layers.
        num_reruns: layers whose experts ran again without a limit.
    """

    def __init__(self, group: Group, experts: Group) -> None:
        self._group = group
        self._experts = experts
        self._num_batches = experts.size // group.size
        self._batch = experts.rank // group.size
        self._num_decisions = 0
        self.capacity = 0
        self.num_overflows = 0
        self.num_reruns = 0

    @property
    def is_replicated(self) -> bool:
        """All ranks hold the same rows."""
        return self._num_batches == 1

    @property
    def collectives_per_pass(self) -> int:
        """Of one layer's experts."""
        if self._experts.size == 1:
            return 0
        return 1 if self.is_replicated else 2

    @property
    def num_extra_collectives(self) -> int:
        """Of this step beyond one pass a layer: decisions about overflow, and reruns."""
        decisions = self._num_decisions if self._experts.size > 1 else 0
        return decisions + self.num_reruns * self.collectives_per_pass

    def start_step(self, capacity: int) -> None:
        """Forget the step before."""
        self.capacity = capacity
        self._num_decisions = self.num_overflows = self.num_reruns = 0

    def spread(self, rows: ExpertRows, layer: int) -> ExpertRows:
        """Rows [R, ...] of all batches, batch by batch; where replicated, the rows themselves."""
        if self.is_replicated:
            return rows
        num_rows, top_k = rows.expert_ids.shape
        wire = rows.weights.dtype
        packed = torch.cat([rows.x.to(wire), rows.expert_ids.to(wire), rows.weights], dim=1)
        # Ranks of one batch hold the same rows: each sends a share of them.
        share = -(-num_rows // self._group.size)
        missing = share * self._group.size - num_rows
        packed = functional.pad(packed, (0, 0, 0, missing))
        own = packed[self._group.rank * share :][:share]
        parts = self._experts.gather(own, f"moe_gather.{layer}")
        joined = torch.cat(parts).view(self._num_batches, -1, packed.shape[1])
        joined = joined[:, :num_rows].reshape(-1, packed.shape[1])
        width = rows.x.shape[1]
        x, ids = joined[:, :width], joined[:, width : width + top_k]
        return ExpertRows(x.to(rows.x.dtype), ids.long(), joined[:, width + top_k :])

    def collect(
        self, routed: torch.Tensor, shared: torch.Tensor | None, layer: int
    ) -> torch.Tensor:
        """The sum over ranks [T, d] of this batch's rows.

        Args:
            routed: [R, d], what this rank's experts give all rows; may be overwritten.
            shared: [T, d], this rank's part of the shared expert; None where it has none.
        """
        by_batch = self._by_batch(routed)
        if shared is None:
            return self._sum(by_batch, layer)
        if self._group.size == 1:
            # Whole here, it need not travel; added last, no sum depends on which batch this is.
            return self._sum(by_batch, layer) + shared
        by_batch[self._batch] += shared
        return self._sum(by_batch, layer)

    def collect_apart(
        self, routed: torch.Tensor, shared: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `collect`, with the sum of the shared expert's parts beside that of the routed."""
        by_batch = self._by_batch(routed)
        both = torch.stack([by_batch, torch.zeros_like(by_batch)], dim=1)
        both[self._batch, 1] = shared
        sums = self._sum(both, layer)
        return sums[0], sums[1]

    def any_overflows(self, num_experts: torch.Tensor, layer: int) -> bool:
        """Whether an expert of any rank was given too many rows; the same answer on every rank.

        One rank that reran its experts alone would wait in a collective that nobody joins.

        Args:
            num_experts: scalar, experts of this rank that were.
        """
        flag = num_experts.to(torch.float32).view(1)
        worst = int(self._experts.max(flag, f"moe_overflow.{layer}"))
        self._num_decisions += 1
        self.num_overflows += worst
        self.num_reruns += worst > 0
        return worst > 0

    def _by_batch(self, routed: torch.Tensor) -> torch.Tensor:
        return routed.view(self._num_batches, -1, routed.shape[1])

    def _sum(self, by_batch: torch.Tensor, layer: int) -> torch.Tensor:
        """[batches, ...] summed over ranks: what belongs to this rank's batch."""
        if self.is_replicated:
            return self._experts.sum(by_batch[0], f"moe.{layer}")
        blocks = by_batch.repeat_interleave(self._group.size, dim=0)
        return self._experts.scatter_sum(blocks, f"moe_scatter.{layer}")
