"""The model of the naive oracle (references/oracle), batched and differentiable.

tests/scripts/test_train_tiny.py holds the two equal on the same weights. Legend: B sequences,
S positions, d hidden, m streams, H heads, D head_dim, n compressed entries, W window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.train_tiny.attention import Attention, Pathways, Selection
from scripts.train_tiny.engram import EngramRows
from scripts.train_tiny.experts import mixture
from scripts.train_tiny.parameters import Parameters
from scripts.train_tiny.rounding import bf16, fp4_index, fp4_kv, fp8_activations
from scripts.train_tiny.streams import collapsed, expanded, hyper_connection, rms
from tiny_checkpoints.geometry import Geometry

__all__ = ["Output", "Rounding", "StoredRounding", "TrainableModel"]


class Rounding:
    """Where activations round: nowhere (`exact`)."""

    def act(self, x: Tensor) -> Tensor:
        """A value stored as bf16."""
        return x

    fp8 = index = kv = act


class StoredRounding(Rounding):
    """At the points of `quantised`, with straight-through gradients."""

    def act(self, x: Tensor) -> Tensor:
        """To bf16."""
        return bf16(x)

    def fp8(self, x: Tensor) -> Tensor:
        """Inputs of linears and window entries."""
        return fp8_activations(x)

    def index(self, x: Tensor) -> Tensor:
        """Index queries and keys."""
        return fp4_index(x)

    def kv(self, x: Tensor) -> Tensor:
        """Compressed entries."""
        return fp4_kv(x)


@dataclass
class Output:
    """Logits [B, S, V]; losses of the indexer and of the experts' balance."""

    logits: Tensor
    index_loss: Tensor
    balance_loss: Tensor
    selections: list[Selection] = field(default_factory=list)


class TrainableModel(nn.Module):
    """All layers of a checkpoint without draft stages.

    Args:
        geometry: dimensions; `num_nextn_predict_layers` is ignored.
        token_map: compressed id of each token, for the Engram hash.
        constants: text_config, for what the geometry does not name.
    """

    def __init__(
        self, geometry: Geometry, token_map: Tensor, constants: dict[str, object], seed: int
    ) -> None:
        super().__init__()
        self.g, self.constants = geometry, constants
        self.weights = Parameters(geometry, seed)
        self.rounding: Rounding = Rounding()
        self.window = int(str(constants["sliding_window"]))
        self.sinkhorn_iterations = int(str(constants["hc_sinkhorn_iters"]))
        self.engram_rows = EngramRows(geometry, token_map, constants)
        self.attention = [Attention(self, layer) for layer in range(geometry.num_hidden_layers)]

    def forward(self, ids: Tensor, pathways: Pathways) -> Output:
        """Logits of ids [B, S], with the pathways that each sequence may use."""
        w, g, act = self.weights, self.g, self.rounding.act
        x = w["embed.weight"][ids][:, :, None, :].expand(-1, -1, g.hc_mult, -1)
        pre = torch.zeros(*ids.shape, g.hc_mult, dtype=x.dtype)
        pre[..., 0] = 1
        selection, balance = Selection(), []
        for layer in range(g.num_hidden_layers):
            if layer in g.engram_layer_ids:
                x = self._engram(layer, x, self.engram_rows(layer, ids))
            name = f"layers.{layer}"
            attn_pre, post, mixing = self._mixes(x, f"{name}.hc_attn")
            rows = self._sublayer_input(x, pre, f"{name}.attn_norm")
            y = self.attention[layer](rows, selection, pathways)
            x = self._expanded(y, x, post, mixing)
            pre, post, mixing = self._mixes(x, f"{name}.hc_ffn")
            rows = self._sublayer_input(x, attn_pre, f"{name}.ffn_norm")
            y, uneven = mixture(self, f"{name}.ffn", rows)
            balance.append(uneven)
            x = self._expanded(y, x, post, mixing)
        last = act(collapsed(x, pre))
        logits = act(rms(last, w["norm.weight"])) @ w["head.weight"].T
        return Output(logits, selection.loss(), torch.stack(balance).mean())

    def linear(self, x: Tensor, name: str) -> Tensor:
        """An fp8 linear: input on the fp8 grid, output stored."""
        return self.rounding.act(self.rounding.fp8(x) @ self.weights[name].T)

    def _sublayer_input(self, x: Tensor, pre: Tensor, norm: str) -> Tensor:
        act = self.rounding.act
        return act(rms(act(collapsed(x, pre)), self.weights[f"{norm}.weight"]))

    def _expanded(self, y: Tensor, x: Tensor, post: Tensor, mixing: Tensor) -> Tensor:
        return self.rounding.act(expanded(y, x, post, mixing))

    def _mixes(self, x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        fn, base, scale = (self.weights[f"{name}_{leaf}"] for leaf in ("fn", "base", "scale"))
        return hyper_connection(x, fn, base, scale, self.sinkhorn_iterations)

    def _engram(self, layer: int, x: Tensor, rows: Tensor) -> Tensor:
        w, g, name = self.weights, self.g, f"layers.{layer}.engram"
        looked_up = functional.embedding(rows, w[f"{name}.embed"]).flatten(2)
        kv = self.linear(looked_up, f"{name}.wkv")
        kv = kv.reshape(*x.shape[:2], g.hc_mult + 1, g.hidden_size)
        key, value = kv[:, :, :-1], kv[:, :, -1:]
        one = torch.ones(g.hidden_size, dtype=x.dtype)
        query = rms(x, one) * w[f"{name}.q_weight"]
        dot = (query * rms(key, one) * w[f"{name}.k_weight"]).sum(-1) * g.hidden_size**-0.5
        root = torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot)
        return self.rounding.act(x + torch.sigmoid(root)[..., None] * value)
