"""The forward of a chunk (model.md §2.12), one sequence, any chunking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.core.errors import UsageError
from references.oracle.arithmetic import ARITHMETICS, Arithmetic
from references.oracle.attention import Attention, LayerCache, Shared
from references.oracle.checkpoint import Checkpoint, Floats
from references.oracle.config import OracleConfig
from references.oracle.engram import EngramHash, token_map
from references.oracle.moe import MixtureOfExperts
from references.oracle.rows import hyper_connection, rms

__all__ = ["Block", "OracleModel", "OracleOutput", "OracleState"]

Ids = npt.NDArray[np.int64]


@dataclass
class OracleState:
    """What one sequence has left behind: a cache per layer and its compressed token ids."""

    caches: list[LayerCache]
    history: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class OracleOutput:
    """Results for the rows of one chunk.

    Attributes:
        logits: [S, V].
        streams: per layer, the residual streams [S, m, d] after it, before any forcing.
        main_hidden: [S, taps*d], what the draft model reads.
    """

    logits: Floats
    streams: list[Floats]
    main_hidden: Floats


class Block:
    """One layer in shifted mHC form: attention, then experts."""

    def __init__(
        self,
        config: OracleConfig,
        weights: Checkpoint,
        arithmetic: Arithmetic,
        prefix: str,
        top_k: int,
    ) -> None:
        self.c, self.w, self.a, self.prefix = config, weights, arithmetic, prefix
        self.moe = MixtureOfExperts(config, weights, arithmetic, f"{prefix}.ffn", top_k)

    def mixes(self, streams: Floats, part: str) -> tuple[Floats, Floats, Floats]:
        """pre, post and mixing matrix of the "attn" or "ffn" sublayer."""
        name, c = f"{self.prefix}.hc_{part}", self.c
        fn, base, scale = (self.w.plain(f"{name}_{leaf}") for leaf in ("fn", "base", "scale"))
        iterations, eps = c.hc_sinkhorn_iters, c.hc_eps
        return hyper_connection(streams, fn, base, scale, c.rms_norm_eps, eps, iterations)

    def sublayer_input(self, streams: Floats, pre: Floats, part: str) -> Floats:
        """RMSNorm of the collapsed streams."""
        x = self.a.act(np.einsum("sj,sjd->sd", pre, streams))
        weight = self.w.plain(f"{self.prefix}.{part}_norm.weight")
        return self.a.act(rms(x, weight, self.c.rms_norm_eps))

    def expanded(self, y: Floats, streams: Floats, post: Floats, mixing: Floats) -> Floats:
        """A sublayer's output back in the streams."""
        mixed = np.einsum("sjk,sjd->skd", mixing, streams)
        return self.a.act(post[:, :, None] * y[:, None, :] + mixed)


class OracleModel:
    """The text model of one checkpoint under one arithmetic."""

    def __init__(self, directory: Path, mode: str = "exact") -> None:
        if mode not in ARITHMETICS:
            raise UsageError(f"mode {mode!r} is not known: choose one of {', '.join(ARITHMETICS)}")
        self.a = ARITHMETICS[mode]
        self.c = OracleConfig.load(directory / "config.json")
        self.w = Checkpoint(directory, self.a.dtype)
        self.token_map = token_map(directory, self.c.engram_compressed_vocab_size)
        self.hash = EngramHash(self.c, int(self.token_map[self.c.engram_pad_token_id]))
        layers = range(self.c.num_hidden_layers)
        self.attention = [Attention(self.c, self.w, self.a, i, f"layers.{i}.attn") for i in layers]
        top_k = self.c.num_experts_per_tok
        self.blocks = [Block(self.c, self.w, self.a, f"layers.{i}", top_k) for i in layers]

    def new_state(self) -> OracleState:
        """A sequence without tokens."""
        return OracleState([attention.new_cache() for attention in self.attention])

    def forward(
        self, ids: Sequence[int], state: OracleState, forced_streams: Floats | None = None
    ) -> OracleOutput:
        """Run the next tokens of a sequence.

        Args:
            forced_streams: [L, S, m, d] that replace the residual after each layer; the `pre`,
                caches and selections stay the model's own.

        Raises:
            UsageError: an empty chunk or an id outside the vocabulary.
        """
        vocab_size = len(self.w.raw("embed.weight"))
        if not ids or min(ids) < 0 or max(ids) >= vocab_size:
            raise UsageError(f"ids must be a non-empty list within 0..{vocab_size - 1}")
        positions = np.arange(len(state.history), len(state.history) + len(ids))
        state.history.extend(int(self.token_map[i]) for i in ids)
        x, pre = self.entry(np.array(ids))
        shared, taps, streams = Shared(), [], []
        for layer in range(self.c.num_hidden_layers):
            if layer in self.c.engram_layer_ids:
                x = self._engram(layer, x, state.history, positions)
            if layer in self.c.dspark_target_layer_ids:
                taps.append(self.a.act(x.mean(1)))
            x, pre = self._block(layer, x, pre, positions, state.caches[layer], shared)
            streams.append(x)
            if forced_streams is not None:
                x = forced_streams[layer].astype(self.a.dtype)
        last = self.a.act(np.einsum("sj,sjd->sd", pre, x))
        hidden = np.concatenate(taps, axis=1) if taps else last[:, :0]
        return OracleOutput(self.head(last, "norm.weight"), streams, hidden)

    def entry(self, ids: Ids) -> tuple[Floats, Floats]:
        """Streams and `pre` before the first layer."""
        rows = self.w.raw("embed.weight")[ids].astype(self.a.dtype)
        pre = np.zeros((len(ids), self.c.hc_mult), self.a.dtype)
        pre[:, 0] = 1
        return np.repeat(rows[:, None, :], self.c.hc_mult, axis=1), pre

    def head(self, x: Floats, norm: str) -> Floats:
        """Logits [S, V] of collapsed rows."""
        normed = self.a.act(rms(x, self.w.plain(norm), self.c.rms_norm_eps))
        return normed @ self.w.plain("head.weight").T

    def _block(
        self, layer: int, x: Floats, pre: Floats, positions: Ids, cache: LayerCache, shared: Shared
    ) -> tuple[Floats, Floats]:
        block = self.blocks[layer]
        attn_pre, post, mixing = block.mixes(x, "attn")
        rows = block.sublayer_input(x, pre, "attn")
        y = self.attention[layer](rows, positions, cache, shared)
        x = block.expanded(y, x, post, mixing)
        ffn_pre, post, mixing = block.mixes(x, "ffn")
        y = block.moe(block.sublayer_input(x, attn_pre, "ffn"))
        return block.expanded(y, x, post, mixing), ffn_pre

    def _engram(self, layer: int, x: Floats, history: list[int], positions: Ids) -> Floats:
        a, c, name = self.a, self.c, f"layers.{layer}.engram"
        ids = np.array([self.hash.rows(layer, history[: p + 1]) for p in positions])
        looked_up = self.w.table_rows(f"{name}.embed", ids).reshape(len(x), -1)
        kv = a.act(a.fp8(looked_up) @ self.w.fp8(f"{name}.wkv").T)
        kv = kv.reshape(len(x), c.hc_mult + 1, c.hidden_size)
        key, value = kv[:, :-1], kv[:, -1]
        one = np.ones(c.hidden_size, a.dtype)
        query = rms(x, one, c.rms_norm_eps) * self.w.plain(f"{name}.q_weight")
        key = rms(key, one, c.rms_norm_eps) * self.w.plain(f"{name}.k_weight")
        dot = (query * key).sum(-1) / np.sqrt(a.dtype(c.hidden_size))
        root = np.copysign(np.sqrt(np.maximum(np.abs(dot), a.dtype(1e-6))), dot)
        gate = 1 / (1 + np.exp(-root))
        return a.act(x + gate[:, :, None] * value[:, None, :])
