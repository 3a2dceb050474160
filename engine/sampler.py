"""Greedy sampling over a vocabulary that may be sharded; ties go to the lowest id."""

from __future__ import annotations

import torch

from engine.model.base import Runtime

__all__ = ["Greedy"]


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

    def from_shards(self, local: torch.Tensor) -> tuple[int, ...]:
        """Ids from this rank's logits [N, V/ranks]; one collective where sharded."""
        return tuple(self.stage(local).tolist())

    def stage(self, local: torch.Tensor) -> torch.Tensor:
        """The same as a tensor [N] int64, without reading a value on the host."""
        ids: torch.Tensor = self._runtime.ops.vocab_argmax(local)
        if self._first is None:
            return ids
        values = local.gather(1, ids.unsqueeze(1))
        # Ids travel as numbers beside the values; both accumulation dtypes hold 2^24 exactly.
        pair = torch.cat([values, (ids.unsqueeze(1) + self._first).to(values.dtype)], dim=1)
        best, *others = self._runtime.group.gather(pair, "argmax")
        for other in others:
            # Strictly greater: of equal values the lower rank's id, which is lower, stays.
            best = torch.where(other[:, :1] > best[:, :1], other, best)
        return best[:, 1].long()
