"""The best tokens of a vocabulary that may be sharded; ties go to the lowest id."""

from __future__ import annotations

import math

import torch

from engine.model.base import Runtime

__all__ = ["Greedy", "Top"]

Top = tuple[torch.Tensor, torch.Tensor]


class Greedy:
    """argmax by stages: each rank over its shard, then over the ranks' best.

    Args:
        vocab_span: this rank's rows of the vocabulary, None where it has all.
    """

    def __init__(self, runtime: Runtime, vocab_span: tuple[int, int] | None) -> None:
        self._runtime = runtime
        self._first = vocab_span[0] if vocab_span else None

    def from_logits(self, logits: torch.Tensor) -> tuple[int, ...]:
        """Ids of full logits [N, V]."""
        return tuple(self._runtime.ops.vocab_argmax(logits).tolist())

    def from_shards(self, local: torch.Tensor) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Ids from this rank's logits [N, V/ranks], and whether each row's best is finite.

        An argmax takes a NaN for the greatest, so that one anywhere in a row shows in its best;
        only [N] values are read beside the ids. One collective where sharded.
        """
        ids, best = self._staged(local)
        return tuple(ids.tolist()), tuple(best.cpu().isfinite().all(dim=1).tolist())

    def stage(self, local: torch.Tensor) -> torch.Tensor:
        """The same as a tensor [N] int64, without reading a value on the host."""
        if self._first is None:
            ids: torch.Tensor = self._runtime.ops.vocab_argmax(local)
            return ids
        return self._staged(local)[0]

    def top_of_logits(self, logits: torch.Tensor, count: int) -> Top:
        """Ids and values [N, count] of full logits [N, V], best first."""
        values, ids = self._runtime.ops.vocab_topk(logits, min(count, logits.shape[1]))
        return ids, values

    def top_of_shards(self, local: torch.Tensor, count: int) -> Top:
        """The same from this rank's logits [N, V/ranks]: the best of the ranks' best.

        One collective where sharded.
        """
        ids, values = self.top_of_logits(local, count)
        if self._first is None:
            return ids, values
        pair = torch.stack([values, (ids + self._first).to(values.dtype)])
        parts = self._runtime.group.gather(pair, "top-k")
        # In rank order, so that of equal values the lowest id comes first again.
        values, ids = torch.cat(parts, dim=2)
        places, best = self.top_of_logits(values, count)
        return ids.gather(1, places).long(), best

    def _staged(self, local: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids [N], and the best value of each shard [N, shards]."""
        ids: torch.Tensor = self._runtime.ops.vocab_argmax(local)
        # A kernel's argmax finds no lane that equals a maximum which is no number: its id then lies
        # beyond the shard, and there is no value to read.
        inside = ids.clamp(0, local.shape[1] - 1)
        values = local.gather(1, inside.unsqueeze(1))
        values = values.masked_fill((inside != ids).unsqueeze(1), math.nan)
        ids = inside
        if self._first is None:
            return ids, values
        # Ids travel as numbers beside the values; both accumulation dtypes hold 2^24 exactly.
        pair = torch.cat([values, (ids.unsqueeze(1) + self._first).to(values.dtype)], dim=1)
        best, *others = pairs = self._runtime.group.gather(pair, "argmax")
        for other in others:
            # Strictly greater: of equal values the lower rank's id, which is lower, stays.
            best = torch.where(other[:, :1] > best[:, :1], other, best)
        return best[:, 1].long(), torch.cat([one[:, :1] for one in pairs], dim=1)
