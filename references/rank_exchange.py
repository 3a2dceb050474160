"""Collectives under DeepEP's faces: over a torch.distributed group (gloo), or in one process.

Tensors travel as bytes, so that every gloo version and every dtype works; buffers have one size on
all ranks, so that every rank joins the same sequence of collectives whatever its tokens are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from references.operands import require, require_ids, require_multiple

__all__ = ["Event", "RankExchange", "local_experts", "without_rows"]


@dataclass(frozen=True, slots=True)
class Event:
    """A CUDA event there; work here is finished when a call returns."""

    def current_stream_wait(self) -> None:
        """Nothing to wait for."""


class RankExchange:
    """One rank's end.

    Args:
        group: a process group, or None for one process.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.num_ranks = 1 if group is None else dist.get_world_size(group)

    def counts(self, rows: int) -> tuple[int, ...]:
        """What every rank says."""
        return tuple(self.gather_equal(torch.tensor([rows])).flatten().tolist())

    def gather(self, part: torch.Tensor, max_rows: int) -> torch.Tensor:
        """[ranks, max_rows, ...] of every rank's rows, padded with zero bytes."""
        flat = part.contiguous().view(torch.uint8).reshape(part.shape[0], -1)
        padded = flat.new_zeros(max_rows, _row_bytes(part))
        padded[: part.shape[0]] = flat
        gathered = self.gather_equal(padded).view(part.dtype)
        return gathered.reshape(self.num_ranks, max_rows, *part.shape[1:])

    def gather_equal(self, part: torch.Tensor) -> torch.Tensor:
        """[ranks, ...] of tensors that have one shape on every rank."""
        if self.group is None:
            return part.unsqueeze(0).clone()
        as_bytes = part.contiguous().view(torch.uint8)
        parts = [torch.empty_like(as_bytes) for _ in range(self.num_ranks)]
        dist.all_gather(parts, as_bytes, group=self.group)
        return torch.stack(parts).view(part.dtype)

    def summed_rows(
        self,
        rows: torch.Tensor,
        source_rank: torch.Tensor,
        source_row: torch.Tensor,
        counts: tuple[int, ...],
        max_rows: int,
    ) -> torch.Tensor:
        """Sum over ranks, in rank order, of what each computed for this rank's tokens.

        rows [R, .] float32 belong to row source_row of rank source_rank; -1: to none.
        """
        partial = rows.new_zeros(self.num_ranks, max_rows, rows.shape[1])
        there = source_rank >= 0
        partial.index_put_((source_rank[there], source_row[there]), rows[there], accumulate=True)
        total = rows.new_zeros(max_rows, rows.shape[1])
        for contribution in self.gather_equal(partial):
            total += contribution[self.rank]
        return total[: counts[self.rank]]


def _row_bytes(part: torch.Tensor) -> int:
    size = part.element_size()
    for length in part.shape[1:]:
        size *= length
    return size


def without_rows(part: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
    """A copy with zero bytes in the absent rows; works for fp8 too."""
    flat = part.contiguous().view(torch.uint8).reshape(len(part), _row_bytes(part)).clone()
    flat[absent] = 0
    return flat.view(part.dtype).reshape(part.shape)


def local_experts(op: str, topk_idx: torch.Tensor, num_experts: int, num_ranks: int) -> int:
    """Experts of a rank, after a look at the ids [T, k], -1 for none.

    Raises:
        UsageError: an expert outside 0..E-1, experts that do not divide over the ranks.
    """
    require_ids(op, "topk_idx", topk_idx, ndim=2)
    require_multiple(op, "num_experts", num_experts, num_ranks)
    inside = bool(((topk_idx >= -1) & (topk_idx < num_experts)).all())
    require(inside, op, f"topk_idx must be within -1..{num_experts - 1}")
    return num_experts // num_ranks
