"""Engram table rows of whole batches (model.md §2.9)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tiny_checkpoints.engram_rows import engram_primes
from tiny_checkpoints.geometry import Geometry

__all__ = ["EngramRows"]


class EngramRows:
    """ids [B, S] -> table rows [B, S, columns] of one layer."""

    def __init__(self, g: Geometry, token_map: Tensor, constants: dict[str, object]) -> None:
        self.token_map = token_map
        self.pad = int(token_map[int(str(constants["engram_pad_token_id"]))])
        self.orders = g.engram_max_ngram_size
        primes = engram_primes(
            len(g.engram_layer_ids), self.orders, g.engram_n_heads, g.engram_vocab_size
        )
        self.primes = dict(zip(g.engram_layer_ids, primes, strict=True))
        size = int(str(constants["engram_compressed_vocab_size"]))
        bound = (2**63 - 1) // size // 2
        self.multipliers = {
            layer: np.random.default_rng(10007 * layer).integers(0, bound, self.orders) * 2 + 1
            for layer in g.engram_layer_ids
        }

    def __call__(self, layer: int, ids: Tensor) -> Tensor:
        """Table rows, columns in the order of n-gram sizes, then heads."""
        tokens = self.token_map[ids]
        padding = torch.full((len(ids), self.orders - 1), self.pad)
        padded = torch.cat((padding, tokens), 1)
        multipliers = self.multipliers[layer]
        mixed = tokens * int(multipliers[0])
        rows, offset = [], 0
        for back in range(1, self.orders):
            first = self.orders - 1 - back
            before = padded[:, first : first + tokens.shape[1]]
            mixed = mixed ^ (before * int(multipliers[back]))
            for prime in self.primes[layer][back - 1]:
                rows.append(mixed % prime + offset)
                offset += prime
        return torch.stack(rows, -1)
