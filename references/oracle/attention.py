"""Attention with its compressor and indexer, dense and masked (model.md §2.4 to §2.7)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from references.oracle.arithmetic import Arithmetic
from references.oracle.checkpoint import Checkpoint, Floats
from references.oracle.config import OracleConfig
from references.oracle.rows import grouped_output, masked_attention, rms, rope, stable_best

__all__ = ["Attention", "LayerCache", "Shared"]

Mask = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]


@dataclass
class LayerCache:
    """What one layer remembers of one sequence.

    Attributes:
        window, window_positions: latents [n, D] of the last positions.
        compressed, index_keys: entries of a kv source.
        tail: (kv, gate) rows of a group that is not complete.
    """

    window: Floats
    window_positions: Ids
    compressed: Floats
    index_keys: Floats
    tail: list[tuple[Floats, Floats]] = field(default_factory=list)


@dataclass
class Shared:
    """What layers hand down within one forward."""

    owner: LayerCache | None = None
    selected: Mask | None = None
    candidates: Mask | None = None


class Attention:
    """The attention of one layer under `prefix`, with its rope kind and role."""

    def __init__(
        self,
        config: OracleConfig,
        weights: Checkpoint,
        arithmetic: Arithmetic,
        layer: int,
        prefix: str,
    ) -> None:
        self.c, self.w, self.a, self.layer, self.prefix = config, weights, arithmetic, layer, prefix
        self.ratio = config.compress_ratios[layer]

    def new_cache(self) -> LayerCache:
        """Nothing seen yet."""
        latent = np.zeros((0, self.c.head_dim), self.a.dtype)
        keys = np.zeros((0, self.c.index_head_dim), self.a.dtype)
        return LayerCache(latent, np.zeros(0, np.int64), latent, keys)

    def __call__(self, x: Floats, positions: Ids, cache: LayerCache, shared: Shared) -> Floats:
        """y [S, d] of the normed, collapsed input x [S, d]; updates cache and shared."""
        q, low_rank = self.queries(x, positions)
        if self.ratio:
            self._compress_and_select(x, low_rank, positions, cache, shared)
        keys, at = self.remember(self.latent(x, positions), positions, cache)
        distance = positions[:, None] - at
        mask = (distance >= 0) & (distance < self.c.sliding_window)
        if self.ratio and shared.owner is not None and shared.selected is not None:
            keys = np.concatenate((keys, shared.owner.compressed))
            mask = np.concatenate((mask, shared.selected), axis=1)
        return self.output(self.attend(q, keys, mask), positions)

    def queries(self, x: Floats, positions: Ids) -> tuple[Floats, Floats]:
        """Rotated queries [S, H, D] and the low-rank vector that the indexer reads too."""
        low_rank = self.normed(self.linear(x, "wq_a"), "q_norm")
        heads = (len(x), self.c.num_attention_heads, self.c.head_dim)
        return self.turned(self.linear(low_rank, "wq_b").reshape(heads), positions), low_rank

    def latent(self, x: Floats, positions: Ids) -> Floats:
        """Window entries [S, D], key and value in one, as the cache stores them."""
        kv = self.normed(self.linear(x, "wkv"), "kv_norm")
        return self.a.fp8(self.turned(kv, positions))

    def remember(self, kv: Floats, positions: Ids, cache: LayerCache) -> tuple[Floats, Ids]:
        """All window entries old and new with their positions; the cache keeps the last W."""
        keys = np.concatenate((cache.window, kv))
        at = np.concatenate((cache.window_positions, positions))
        first_kept = max(0, len(at) - self.c.sliding_window)
        cache.window, cache.window_positions = keys[first_kept:], at[first_kept:]
        return keys, at

    def attend(self, q: Floats, keys: Floats, mask: Mask) -> Floats:
        """o [S, H, D] before the inverse rotation."""
        sink = self.w.plain(f"{self.prefix}.attn_sink")
        return masked_attention(self.a, q, keys, mask, sink, self.c.head_dim**-0.5)

    def output(self, o: Floats, positions: Ids) -> Floats:
        """Inverse rotation, grouped wo_a, wo_b."""
        turned = self.turned(o, -positions)
        u = grouped_output(turned, self.w.fp8(f"{self.prefix}.wo_a"), self.c.o_groups)
        return self.linear(self.a.act(u), "wo_b")

    def linear(self, x: Floats, name: str) -> Floats:
        """An fp8 linear: input on the fp8 grid, output stored."""
        return self.a.act(self.a.fp8(x) @ self.w.fp8(f"{self.prefix}.{name}").T)

    def normed(self, x: Floats, name: str) -> Floats:
        """RMSNorm with the weight `name`."""
        return self.a.act(rms(x, self.w.plain(f"{self.prefix}.{name}.weight"), self.c.rms_norm_eps))

    def turned(self, x: Floats, positions: Ids) -> Floats:
        """RoPE by this layer's table; negative positions turn back."""
        c = self.c
        if not self.ratio:
            return self.a.act(rope(x, positions, c.qk_rope_head_dim, c.rope_theta, None))
        yarn = (c.rope_factor, c.rope_beta_fast, c.rope_beta_slow, c.rope_original_length)
        turned = rope(x, positions, c.qk_rope_head_dim, c.compress_rope_theta, yarn)
        return self.a.act(turned)

    def _compress_and_select(
        self, x: Floats, low_rank: Floats, positions: Ids, cache: LayerCache, shared: Shared
    ) -> None:
        if self.layer in self.c.kv_source_layer_ids:
            self._append_entries(x, cache)
            shared.owner = cache
        if self.layer in self.c.index_source_layer_ids:
            self._select(x, low_rank, positions, shared)

    def _append_entries(self, x: Floats, cache: LayerCache) -> None:
        """Latents of the groups that this chunk completes, as index keys and as KV."""
        latent = self._latents(x, cache)
        if not len(latent):
            return
        first = len(cache.compressed)
        at = np.arange(first, first + len(latent)) * self.ratio
        wk = self.w.plain(f"{self.prefix}.indexer.wk.weight")
        key = self.normed(self.a.act(latent @ wk.T), "indexer.k_norm")
        key = self.a.fp4_for_index(self.turned(key, at))
        cache.index_keys = np.concatenate((cache.index_keys, key))
        entry = self.a.fp4_for_kv(self.turned(latent, at))
        cache.compressed = np.concatenate((cache.compressed, entry))

    def _latents(self, x: Floats, cache: LayerCache) -> Floats:
        name = f"{self.prefix}.compressor"
        kv = x @ self.w.plain(f"{name}.wkv.weight").T
        if self.ratio == 1:
            return self.normed(self.a.act(kv), "compressor.norm")
        gate = x @ self.w.plain(f"{name}.wgate.weight").T
        waiting = [*cache.tail, *zip(kv, gate, strict=True)]
        complete = len(waiting) // self.ratio * self.ratio
        cache.tail = waiting[complete:]
        pooled = np.zeros((complete // self.ratio, kv.shape[1]), self.a.dtype)
        for group in range(len(pooled)):
            members = waiting[group * self.ratio : (group + 1) * self.ratio]
            values, gates = (np.stack(part) for part in zip(*members, strict=True))
            shares = np.exp(gates - gates.max(0))
            pooled[group] = (values * shares).sum(0) / shares.sum(0)
        return self.normed(self.a.act(pooled), "compressor.norm")

    def _select(self, x: Floats, low_rank: Floats, positions: Ids, shared: Shared) -> None:
        c = self.c
        assert shared.owner is not None
        scores = self._scores(x, low_rank, positions, shared.owner.index_keys)
        visible = (positions + 1) // self.ratio
        seen = np.arange(scores.shape[1]) < visible[:, None]
        scores = np.where(seen, scores, -np.inf)
        if self.layer == c.candidate_source_layer_id:
            shared.candidates = self._candidates(scores, visible)
        elif self.layer > c.candidate_source_layer_id and shared.candidates is not None:
            scores = np.where(shared.candidates, scores, -np.inf)
        shared.selected = stable_best(scores, c.index_topk)

    def _scores(self, x: Floats, low_rank: Floats, positions: Ids, keys: Floats) -> Floats:
        c, name = self.c, f"{self.prefix}.indexer"
        q = self.linear(low_rank, "indexer.wq_b").reshape(len(x), c.index_n_heads, c.index_head_dim)
        q = self.a.fp4_for_index(self.turned(q, positions))
        weights = self.a.act(x @ self.w.plain(f"{name}.weights_proj.weight").T)
        weights = weights * self.a.dtype(1 / math.sqrt(c.index_head_dim * c.index_n_heads))
        scores = np.zeros((len(x), len(keys)), self.a.dtype)
        for head in range(c.index_n_heads):
            scores += weights[:, head, None] * np.maximum(q[:, head] @ keys.T, 0)
        return scores

    def _candidates(self, scores: Floats, visible: Ids) -> Mask:
        size = self.c.candidate_block_size
        block_of = np.arange(scores.shape[1]) // size
        num_blocks = -(-scores.shape[1] // size)
        best = np.full((len(scores), num_blocks), -np.inf)
        for block in range(num_blocks):
            best[:, block] = scores[:, block_of == block].max(1)
        some = visible > 0
        best[some, (visible[some] - 1) // size] = np.inf
        mask: Mask = stable_best(best, self.c.candidate_topk_blocks)[:, block_of]
        return mask
