"""The best tokens of a vocabulary that may be sharded; ties go to the lowest id."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from engine.model.base import Runtime
from engine.row_digest import row_digests, stray_ranks

__all__ = ["Greedy", "Sampled", "Top"]

Top = tuple[torch.Tensor, torch.Tensor]


class Sampled(NamedTuple):
    """What the first rank of a batch makes of all ranks' logits of N rows.

    Attributes:
        ids: [N].
        is_finite: [N], whether each row's best logit is a number.
        strays: ranks of the batch whose hidden rows differ from those of most (of two: of rank 0);
            () where the vocabulary is not sharded, since nothing is exchanged then.
    """

    ids: tuple[int, ...]
    is_finite: tuple[bool, ...]
    strays: tuple[int, ...] = ()


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

    def from_shards(self, local: torch.Tensor, rows: torch.Tensor) -> Sampled:
        """From this rank's logits [N, V/ranks] and the hidden rows [N, d] they were made of.

        An argmax takes a NaN for the greatest, so that one anywhere in a row shows in its best;
        only [N] values are read beside the ids. One collective where sharded, in which digests of
        the rows travel beside the best.
        """
        if self._first is None:
            ids, best = self._best(local)
            return Sampled(_on_host(ids), _are_finite(best))
        parts = self._gathered(local, self._first, rows)
        ids, best = _best_of(parts)
        return Sampled(
            _on_host(ids), _are_finite(best), stray_ranks([part[:, 2:] for part in parts])
        )

    def stage(self, local: torch.Tensor) -> torch.Tensor:
        """The same as a tensor [N] int64, without reading a value on the host."""
        if self._first is None:
            ids: torch.Tensor = self._runtime.ops.vocab_argmax(local)
            return ids
        return _best_of(self._gathered(local, self._first))[0]

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

    def contribute(self, local: torch.Tensor, rows: torch.Tensor, num_top: int) -> None:
        """This rank's part in what the first rank samples; nothing where it needs no other."""
        if self._first is None:
            return
        self._gathered(local, self._first, rows)
        if num_top:
            self._gathered_top(local, num_top, self._first)

    def _gathered_top(self, local: torch.Tensor, count: int, first: int) -> list[torch.Tensor]:
        """Of every rank, values and ids of its shard's best [2, N, count]."""
        ids, values = self.top_of_logits(local, count)
        pair = torch.stack([values, (ids + first).to(values.dtype)])
        return self._runtime.group.gather(pair, "top-k")

    def _gathered(
        self, local: torch.Tensor, first: int, rows: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Of every rank, best value and id of its shard, and digests of its rows [N, 2 or more].

        Args:
            first: id that this rank's shard begins with.
        """
        ids, values = self._best(local)
        # Ids travel as numbers beside the values; both accumulation dtypes hold 2^24 exactly.
        columns = [values, (ids.unsqueeze(1) + first).to(values.dtype)]
        if rows is not None:
            columns.append(row_digests(rows, values.dtype))
        return self._runtime.group.gather(torch.cat(columns, dim=1), "argmax")

    def _best(self, local: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids [N] within these logits, and their values [N, 1]."""
        ids: torch.Tensor = self._runtime.ops.vocab_argmax(local)
        # A kernel's argmax finds no lane that equals a maximum which is no number: its id then lies
        # beyond the shard, and there is no value to read.
        inside = ids.clamp(0, local.shape[1] - 1)
        values = local.gather(1, inside.unsqueeze(1))
        return inside, values.masked_fill((inside != ids).unsqueeze(1), math.nan)


def _best_of(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [N], and the best value of each shard [N, shards], of `_gathered` parts."""
    best, *others = parts
    for other in others:
        # Strictly greater: of equal values the lower rank's id, which is lower, stays.
        best = torch.where(other[:, :1] > best[:, :1], other, best)
    return best[:, 1].long(), torch.cat([one[:, :1] for one in parts], dim=1)


def _on_host(ids: torch.Tensor) -> tuple[int, ...]:
    return tuple(ids.tolist())


def _are_finite(best: torch.Tensor) -> tuple[bool, ...]:
    """[N] of the best values [N, shards]."""
    return tuple(best.cpu().isfinite().all(dim=1).tolist())
