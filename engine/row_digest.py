"""Digests of hidden rows, which tell whether the ranks of a batch still hold the same ones.

Ranks of one batch replicate everything but their shares of heads, experts and vocabulary, and take
sums in rank order, so their hidden rows are equal to the last bit: on CPU cores of one kind, and
on NeuronCores, where one graph on identical cores is deterministic too (not tried: no device was
there). Processors of different kinds under one launch may round differently, and are told apart as
ranks that drift are.

Legend: N rows, d values a row, R ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

__all__ = ["DIGEST_WIDTH", "row_digests", "stray_ranks"]

# Pieces of 22, 21 and 21 bits: whole numbers that fp32 holds exactly.
_SHIFTS = (0, 22, 43)
_MASKS = (2**22 - 1, 2**21 - 1, 2**21 - 1)
DIGEST_WIDTH = len(_SHIFTS)


def row_digests(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """64 bits of each row [N, d] as numbers [N, DIGEST_WIDTH] of a dtype that holds 2^24.

    The bits of a row, as words of at most 32, are weighted by odd constants and added modulo 2^64:
    one word that differs always shows, several do but for one case in 2^32. Made on the host, where
    integers are exact; on a device this copies the rows that tokens are chosen from.
    """
    words = rows.detach().cpu().contiguous()
    has_whole_words = words.shape[1] * words.element_size() % 4 == 0
    words = words.view(torch.int32 if has_whole_words else torch.int16).long()
    digests = (words * _weights(words.shape[1])).sum(dim=1)
    pieces = [digests >> shift & mask for shift, mask in zip(_SHIFTS, _MASKS, strict=True)]
    return torch.stack(pieces, dim=1).to(rows.device, dtype)


def stray_ranks(digests: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Places in `digests` (R of [N, DIGEST_WIDTH]) that differ from most; a tie is for the first's.

    Reads their values on the host.
    """
    contents = [one.cpu().numpy().tobytes() for one in digests]
    (usual, count), *_ = Counter(contents).most_common(1)
    if count == len(contents):
        return ()
    return tuple(rank for rank, content in enumerate(contents) if content != usual)


@lru_cache(maxsize=16)
def _weights(width: int) -> torch.Tensor:
    """[width] odd int64, the same on every rank."""
    drawn = np.random.Generator(np.random.PCG64(width)).integers(
        -(2**63), 2**63, size=width, dtype=np.int64
    )
    return torch.from_numpy(drawn | 1)
