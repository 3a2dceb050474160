"""Row ids of the engram tables for a run of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.config.model import EngramConfig
from engine.engram.primes import engram_primes

__all__ = ["EngramHash"]

Ids = npt.NDArray[np.int64]


class EngramHash:
    """Hashes token n-grams to table rows, the same for every rank and chunking.

    Args:
        engram: the layers and sizes.
        token_map: [vocab] int64, token id -> compressed id.
    """

    def __init__(self, engram: EngramConfig, token_map: Ids) -> None:
        self.num_lookback = engram.max_ngram - 1
        self._token_map = token_map
        self._pad = int(token_map[engram.pad_token_id])
        self._multipliers = [
            _multipliers(layer, engram.max_ngram, engram.compressed_vocab_size)
            for layer in engram.layer_ids
        ]
        primes = np.array(engram_primes(engram), dtype=np.int64)  # [layer, order, head]
        flat = primes.reshape(len(engram.layer_ids), -1)
        self._primes = primes
        self._offsets = (np.cumsum(flat, axis=1) - flat).reshape(primes.shape)

    def rows(self, history: Sequence[int], token_ids: Sequence[int]) -> Ids:
        """Table rows [num_layers, T, (max_ngram - 1) * heads].

        Args:
            history: the tokens before the first of `token_ids`, oldest first; all of them, or
                at least the last max_ngram - 1.
            token_ids: T tokens.
        """
        lookback_TN = self._lookback(history, token_ids)
        return np.stack(
            [self._layer_rows(index, lookback_TN) for index in range(len(self._multipliers))]
        )

    def _lookback(self, history: Sequence[int], token_ids: Sequence[int]) -> Ids:
        """[T, max_ngram], newest first; what lies before the sequence is the pad id."""
        depth = self.num_lookback
        if not token_ids:
            return np.zeros((0, depth + 1), dtype=np.int64)  # a batch without work
        known = self._token_map[np.asarray([*history[-depth:], *token_ids], dtype=np.int64)]
        num_missing = depth - min(depth, len(history))
        padded = np.concatenate([np.full(num_missing, self._pad, dtype=np.int64), known])
        windows = np.lib.stride_tricks.sliding_window_view(padded, depth + 1)
        return windows[:, ::-1]

    def _layer_rows(self, layer_index: int, lookback_TN: Ids) -> Ids:
        # Products stay below 2^63 because multipliers are at most 2 * (2^63-1)//vocab//2.
        products = lookback_TN * self._multipliers[layer_index]
        mixed = products[:, 0]
        columns = []
        for order in range(self.num_lookback):
            mixed = mixed ^ products[:, order + 1]
            row = mixed[:, None] % self._primes[layer_index, order]
            columns.append(row + self._offsets[layer_index, order])
        return np.concatenate(columns, axis=1)


def _multipliers(layer_id: int, count: int, compressed_vocab_size: int) -> Ids:
    bound = (2**63 - 1) // compressed_vocab_size // 2
    draws = np.random.default_rng(10007 * layer_id).integers(0, bound, size=count, dtype=np.int64)
    return draws * 2 + 1
