"""Attention with compressor and indexer over whole sequences (model.md §2.4 to §2.7).

What is selected has no gradient: attention trains through the entries that are selected, and the
indexer learns from the attention it steers, by the divergence of its scores from the attention's
weights. Legend: B sequences, S positions, H heads, D head_dim, n entries, W window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scripts.train_tiny.streams import rms

if TYPE_CHECKING:
    from scripts.train_tiny.model import TrainableModel

__all__ = ["Attention", "Pathways", "Selection", "rope_frequencies"]

_NEVER = -1e30


@dataclass(frozen=True)
class Pathways:
    """What the sequences of a batch may use, to give each kind of layer work of its own.

    Attributes:
        allows_ratio: ratio -> flags [B]: whether layers of the ratio see compressed entries.
        selects: whether the indexer's choice binds; else all visible entries are attended to.
    """

    allows_ratio: dict[int, Tensor] = field(default_factory=dict)
    selects: bool = True


@dataclass
class _Index:
    """One index source: its scores [B, S, n] and what the layers under it attended to."""

    scores: Tensor
    visible: Tensor
    attended: list[Tensor] = field(default_factory=list)


@dataclass
class Selection:
    """What layers hand down: entries of the present owner, the mask of the present source."""

    entries: Tensor | None = None
    latent: Tensor | None = None
    keys: Tensor | None = None
    mask: Tensor | None = None
    candidates: Tensor | None = None
    sources: list[_Index] = field(default_factory=list)

    def loss(self) -> Tensor:
        """Mean divergence of index scores from attention weights, by attended mass."""
        losses = []
        for place, source in enumerate(self.sources):
            attended = list(source.attended)
            for later in self.sources[place + 1 :]:
                # A candidate source decides what the sources after it may select from.
                if later.scores.shape == source.scores.shape:
                    attended += later.attended
            weights = torch.stack(attended).sum(0)
            mass = weights.sum(-1, keepdim=True)
            target = weights / mass.clamp(min=1e-6)
            scores = source.scores.masked_fill(~source.visible, _NEVER)
            log_share = torch.log_softmax(scores, -1)
            entropy = torch.xlogy(target, target).sum(-1)
            divergence = entropy - (target * log_share).sum(-1)
            weight = mass[..., 0].clamp(max=1)
            losses.append((divergence * weight).sum() / weight.sum().clamp(min=1))
        return torch.stack(losses).sum() if losses else torch.zeros(())


class Attention:
    """The attention of one layer."""

    def __init__(self, model: TrainableModel, layer: int) -> None:
        self.model, self.layer, self.name = model, layer, f"layers.{layer}.attn"
        self.ratio = model.g.ratio(layer)
        self.frequencies = rope_frequencies(model.constants, compressed=self.ratio > 0)

    def __call__(self, x: Tensor, selection: Selection, pathways: Pathways) -> Tensor:
        """y [B, S, d] of x [B, S, d]."""
        model, g = self.model, self.model.g
        w, act = model.weights, model.rounding.act
        positions = torch.arange(x.shape[1])
        low_rank = self._normed(model.linear(x, f"{self.name}.wq_a"), "q_norm")
        q = model.linear(low_rank, f"{self.name}.wq_b")
        q = self._turned(q.reshape(*x.shape[:2], g.num_attention_heads, g.head_dim), positions)
        kv = self._normed(model.linear(x, f"{self.name}.wkv"), "kv_norm")
        window = model.rounding.fp8(self._turned(kv, positions))
        if self.ratio:
            if self.layer in g.kv_source_layer_ids:
                self._compress(x, selection)
            if self.layer in g.index_source_layer_ids:
                self._select(x, low_rank, selection, pathways.selects)
        o = self._attend(q, window, selection, pathways)
        o = self._turned(o, -positions).flatten(2)
        grouped = o.reshape(*x.shape[:2], g.o_groups, -1)
        wo_a = w[f"{self.name}.wo_a"].reshape(g.o_groups, g.o_lora_rank, -1)
        u = torch.einsum("bsgk,glk->bsgl", grouped, wo_a).flatten(2)
        return model.linear(act(u), f"{self.name}.wo_b")

    def _normed(self, x: Tensor, norm: str) -> Tensor:
        weight = self.model.weights[f"{self.name}.{norm}.weight"]
        return self.model.rounding.act(rms(x, weight))

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """RoPE on the last channels of x [B, S, ..., D]."""
        width = 2 * len(self.frequencies)
        angles = (positions[:, None] * self.frequencies).to(x.dtype)
        angles = angles.reshape(len(positions), *[1] * (x.dim() - 3), width // 2)
        cos, sin = angles.cos(), angles.sin()
        pairs = torch.unflatten(x[..., -width:], -1, (-1, 2))
        even, odd = pairs[..., 0], pairs[..., 1]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
        return self.model.rounding.act(torch.cat((x[..., :-width], turned), -1))

    def _attend(
        self, q: Tensor, window: Tensor, selection: Selection, pathways: Pathways
    ) -> Tensor:
        """o [B, S, H, D]; the window in blocks of W rows, each with the block before it."""
        g, act = self.model.g, self.model.rounding.act
        W, heads, scale = self.model.window, g.num_attention_heads, g.head_dim**-0.5
        batch, length = q.shape[:2]
        blocks = length // W
        assert blocks * W == length, "whole window blocks only"
        own = window.reshape(batch, blocks, W, -1)
        before = torch.cat((torch.zeros_like(own[:, :1]), own[:, :-1]), 1)
        keys = torch.cat((before, own), 2)  # [B, blocks, 2W, D]
        q_blocks = q.reshape(batch, blocks, W * heads, -1)
        near = (q_blocks @ keys.transpose(-1, -2) * scale).reshape(batch, length, heads, 2 * W)
        near = near.masked_fill(~_window_mask(length, W)[None, :, None], _NEVER)
        scores = [near]
        entries = selection.entries if self.ratio else None
        if entries is not None:
            assert selection.mask is not None
            far = q.flatten(1, 2) @ entries.transpose(-1, -2) * scale
            far = torch.unflatten(far, 1, (length, -1))
            mask = selection.mask
            allowed = pathways.allows_ratio.get(self.ratio)
            if allowed is not None:
                mask = mask & allowed[:, None, None]
            scores.append(far.masked_fill(~mask[:, :, None], _NEVER))
        sink = self.model.weights[f"{self.name}.attn_sink"]
        scores.append(sink[None, None, :, None].expand(batch, length, -1, 1))
        shares = torch.softmax(torch.cat(scores, -1), -1)
        near_shares = shares[..., : 2 * W].reshape(batch, blocks, W * heads, 2 * W)
        o = (near_shares @ keys).reshape(q.shape)
        if entries is not None:
            far_shares = shares[..., 2 * W : -1]
            o = o + (far_shares.flatten(1, 2) @ entries).reshape(q.shape)
            selection.sources[-1].attended.append(far_shares.detach().sum(2))
        return act(o)

    def _compress(self, x: Tensor, selection: Selection) -> None:
        """Entries and index keys of this kv source."""
        w, rounding, name = self.model.weights, self.model.rounding, f"{self.name}.compressor"
        kv = x @ w[f"{name}.wkv.weight"].T
        if self.ratio > 1:
            gate = torch.unflatten(x @ w[f"{name}.wgate.weight"].T, 1, (-1, self.ratio))
            kv = (torch.unflatten(kv, 1, (-1, self.ratio)) * torch.softmax(gate, 2)).sum(2)
        latent = self._normed(rounding.act(kv), "compressor.norm")
        at = torch.arange(latent.shape[1]) * self.ratio
        key = rounding.act(latent.detach() @ w[f"{self.name}.indexer.wk.weight"].T)
        key = self._turned(self._normed(key, "indexer.k_norm"), at)
        selection.keys = rounding.index(key)
        selection.entries = rounding.kv(self._turned(latent, at))

    def _select(self, x: Tensor, low_rank: Tensor, selection: Selection, selects: bool) -> None:
        g = self.model.g
        scores = self._scores(x.detach(), low_rank.detach(), selection)
        num_visible = (torch.arange(x.shape[1]) + 1) // self.ratio
        visible = torch.arange(scores.shape[2]) < num_visible[:, None]
        selection.sources.append(_Index(scores, visible))
        if not selects:
            selection.mask = visible.expand(scores.shape)
            return
        hidden = scores.detach().masked_fill(~visible, -torch.inf)
        if self.layer == g.candidate_source_layer_id:
            selection.candidates = self._candidates(hidden, num_visible)
        elif self.layer > g.candidate_source_layer_id and selection.candidates is not None:
            hidden = hidden.masked_fill(~selection.candidates, -torch.inf)
        selection.mask = _best(hidden, g.index_topk)

    def _scores(self, x: Tensor, low_rank: Tensor, selection: Selection) -> Tensor:
        g, model, name = self.model.g, self.model, f"{self.name}.indexer"
        q = model.linear(low_rank, f"{name}.wq_b")
        q = self._turned(q.reshape(*x.shape[:2], g.index_n_heads, -1), torch.arange(x.shape[1]))
        q = model.rounding.index(q)
        weights = model.rounding.act(x @ model.weights[f"{name}.weights_proj.weight"].T)
        weights = weights / math.sqrt(g.index_head_dim * g.index_n_heads)
        assert selection.keys is not None
        products = (q.flatten(1, 2) @ selection.keys.transpose(-1, -2)).relu()
        products = torch.unflatten(products, 1, (x.shape[1], -1))  # [B, S, heads, n]
        scores: Tensor = (weights[..., None] * products).sum(-2)
        return scores

    def _candidates(self, scores: Tensor, num_visible: Tensor) -> Tensor:
        g, size = self.model.g, self.model.g.candidate_block_size
        padding = -scores.shape[2] % size
        padded = torch.nn.functional.pad(scores, (0, padding), value=-torch.inf)
        best = torch.unflatten(padded, 2, (-1, size)).amax(-1)
        newest = ((num_visible - 1) // size).clamp(min=0)
        pinned = torch.nn.functional.one_hot(newest, best.shape[2]).bool()
        pinned &= (num_visible > 0)[:, None]
        best = best.masked_fill(pinned, torch.inf)
        chosen = _best(best, g.candidate_topk_blocks)
        return chosen.repeat_interleave(size, 2)[..., : scores.shape[2]]


def _best(scores: Tensor, count: int) -> Tensor:
    """Mask of the `count` largest scores above -inf; ties to the lower index."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True)[1][..., :count]
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
    return mask & (scores > -torch.inf)


def _window_mask(length: int, W: int) -> Tensor:
    """[S, 2W]: which keys of the own block and the one before a row sees."""
    row, key = torch.arange(W)[:, None], torch.arange(2 * W) - W
    inside = (key <= row) & (key > row - W)
    mask = inside.repeat(length // W, 1)
    mask[:W, :W] = False
    return mask


def rope_frequencies(constants: dict[str, object], *, compressed: bool) -> Tensor:
    """Angle a position of each channel pair (model.md §2.1), fp64."""
    width = int(str(constants["qk_rope_head_dim"]))
    base = float(str(constants["compress_rope_theta" if compressed else "rope_theta"]))
    pair = torch.arange(width // 2, dtype=torch.float64)
    frequencies = base ** (-2 * pair / width)
    if not compressed:
        return frequencies
    scaling = constants["rope_scaling"]
    assert isinstance(scaling, dict)
    original = scaling["original_max_position_embeddings"]

    def pair_with(rotations: float) -> float:
        return width * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(base))

    low = max(math.floor(pair_with(scaling["beta_fast"])), 0)
    high = min(math.ceil(pair_with(scaling["beta_slow"])), width - 1)
    ramp = ((pair - low) / max(high - low, 1e-3)).clamp(0, 1)
    slow: Tensor = frequencies / scaling["factor"]
    return slow * ramp + frequencies * (1 - ramp)
