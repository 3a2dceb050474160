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
        if self._first is None:
            return self.top_of_logits(local, count)
        parts = self._gathered_top(local, count, self._first)
        # In rank order, so that of equal values the lowest id comes first again.
        values, ids = torch.cat(parts, dim=2)
        places, best = self.top_of_logits(values, count)
        # Of logits that are no numbers a kernel may name places beyond the last; none is used.
        return ids.gather(1, places.clamp(max=ids.shape[1] - 1)).long(), best

    def contribute(self, local: torch.Tensor, num_top: int) -> None:
        """This rank's part in what the first rank samples; nothing where it needs no other."""
        if self._first is None:
            return
        self._gathered(local, self._first)
        if num_top:
            self._gathered_top(local, num_top, self._first)

    def _gathered_top(self, local: torch.Tensor, count: int, first: int) -> list[torch.Tensor]:
        """Of every rank, values and ids of its shard's best [2, N, count]."""
        ids, values = self.top_of_logits(local, count)
        pair = torch.stack([values, (ids + first).to(values.dtype)])
        return self._runtime.group.gather(pair, "top-k")

    def _staged(self, local: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids [N], and the best value of each shard [N, shards]."""
        if self._first is None:
            return self._best(local)
        best, *others = pairs = self._gathered(local, self._first)
        for other in others:
            # Strictly greater: of equal values the lower rank's id, which is lower, stays.
            best = torch.where(other[:, :1] > best[:, :1], other, best)
        return best[:, 1].long(), torch.cat([one[:, :1] for one in pairs], dim=1)

    def _gathered(self, local: torch.Tensor, first: int) -> list[torch.Tensor]:
        """Of every rank, best value and id of its shard [N, 2]; this one's begins at `first`."""
        ids, values = self._best(local)
        # Ids travel as numbers beside the values; both accumulation dtypes hold 2^24 exactly.
        pair = torch.cat([values, (ids.unsqueeze(1) + first).to(values.dtype)], dim=1)
        return self._runtime.group.gather(pair, "argmax")

    def _best(self, local: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids [N] within these logits, and their values [N, 1]."""
        ids: torch.Tensor = self._runtime.ops.vocab_argmax(local)
        # A kernel's argmax finds no lane that equals a maximum which is no number: its id then lies
        # beyond the shard, and there is no value to read.
        inside = ids.clamp(0, local.shape[1] - 1)
        values = local.gather(1, inside.unsqueeze(1))
        return inside, values.masked_fill((inside != ids).unsqueeze(1), math.nan)
