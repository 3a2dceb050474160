"""DSpark draft stages (model.md §2.10), greedy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from references.oracle.attention import Attention, LayerCache
from references.oracle.checkpoint import Floats
from references.oracle.model import Block, OracleModel
from references.oracle.rows import rms

__all__ = ["DraftBlock", "DraftModel"]


@dataclass(frozen=True)
class DraftBlock:
    """One proposal.

    Attributes:
        tokens: the block's first token and its greedy drafts, 1 + block size ids.
        logits: Markov-biased, [block size, V].
        confidence: raw logit of each draft, [block size].
    """

    tokens: tuple[int, ...]
    logits: Floats
    confidence: Floats


class DraftModel:
    """The stages of `mtp.*` beside their target model, for one sequence."""

    def __init__(self, target: OracleModel) -> None:
        self.target, self.c, self.w, self.a = target, target.c, target.w, target.a
        stages = range(self.c.num_nextn_predict_layers)
        top_k, first = self.c.dspark_num_experts_per_tok, self.c.num_hidden_layers
        self.blocks = [Block(self.c, self.w, self.a, f"mtp.{i}", top_k) for i in stages]
        self.attention = [
            Attention(self.c, self.w, self.a, first + i, f"mtp.{i}.attn") for i in stages
        ]
        self.last = f"mtp.{len(stages) - 1}"

    def new_rings(self) -> list[LayerCache]:
        """Empty context of each stage."""
        return [attention.new_cache() for attention in self.attention]

    def absorb(
        self, main_hidden: Floats, first_position: int, rings: list[LayerCache]
    ) -> list[LayerCache]:
        """Seed the rings with committed target positions; main_hidden [S, taps*d]."""
        x = self.a.act(self.a.fp8(main_hidden) @ self.w.fp8("mtp.0.main_proj").T)
        x = self.a.act(rms(x, self.w.plain("mtp.0.main_norm.weight"), self.c.rms_norm_eps))
        positions = np.arange(first_position, first_position + len(x))
        for attention, ring in zip(self.attention, rings, strict=True):
            attention.remember(attention.latent(x, positions), positions, ring)
        return rings

    def propose(self, token: int, position: int, rings: list[LayerCache]) -> DraftBlock:
        """Draft from `token`, which stands at position + 1 and has not been run yet."""
        size = self.c.dspark_block_size
        ids = np.array([token] + [self.c.dspark_noise_token_id] * (size - 1))
        positions = np.arange(position + 1, position + 1 + size)
        x, pre = self.target.entry(ids)
        for block, attention, ring in zip(self.blocks, self.attention, rings, strict=True):
            attn_pre, post, mixing = block.mixes(x, "attn")
            rows = block.sublayer_input(x, pre, "attn")
            x = block.expanded(self._attend(attention, rows, positions, ring), x, post, mixing)
            pre, post, mixing = block.mixes(x, "ffn")
            x = block.expanded(block.moe(block.sublayer_input(x, attn_pre, "ffn")), x, post, mixing)
        return self._markov(token, self.a.act(np.einsum("sj,sjd->sd", pre, x)))

    def _attend(
        self,
        attention: Attention,
        x: Floats,
        positions: npt.NDArray[np.int64],
        ring: LayerCache,
    ) -> Floats:
        """Every row sees the whole block and the last W committed positions."""
        q, _ = attention.queries(x, positions)
        keys = np.concatenate((ring.window, attention.latent(x, positions)))
        everything = np.ones((len(x), len(keys)), np.bool_)
        return attention.output(attention.attend(q, keys, everything), positions)

    def _markov(self, token: int, x: Floats) -> DraftBlock:
        logits = self.target.head(x, f"{self.last}.norm.weight")
        embed = self.w.plain(f"{self.last}.markov_head.embed.weight")
        head = self.w.plain(f"{self.last}.markov_head.head.weight")
        projection = self.w.plain(f"{self.last}.confidence_head.proj.weight")[0]
        tokens, confidence = [token], []
        for row in range(len(x)):
            previous = embed[tokens[-1]]
            logits[row] += head @ previous
            confidence.append(projection @ np.concatenate((x[row], previous)))
            tokens.append(int(np.argmax(logits[row])))
        return DraftBlock(tuple(tokens), logits, np.array(confidence))
