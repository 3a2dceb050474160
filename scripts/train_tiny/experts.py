"""Mixture of experts with a shared expert (model.md §2.8), rows gathered per expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from scripts.train_tiny.model import TrainableModel

__all__ = ["mixture"]


def mixture(model: TrainableModel, name: str, x_BSd: Tensor) -> tuple[Tensor, Tensor]:
    """The sublayer's output [B, S, d] and how unevenly experts are chosen (1 = evenly)."""
    w, g, rounding = model.weights, model.g, model.rounding
    x = x_BSd.flatten(0, 1)
    scores = functional.softplus(x @ w[f"{name}.gate.weight"].T).clamp(min=1e-12).sqrt()
    order = torch.sort(scores + w[f"{name}.gate.bias"], dim=1, descending=True, stable=True)[1]
    chosen = order[:, : g.num_experts_per_tok]
    shares = torch.gather(scores, 1, chosen)
    shares = shares / (shares.sum(1, keepdim=True) + 1e-20)
    shares = shares * float(str(model.constants["routed_scaling_factor"]))
    weights = torch.zeros_like(scores).scatter(1, chosen, shares)
    y = _experts(model, name, rounding.fp8(x), weights)
    load = (weights > 0).to(x.dtype).mean(0) / g.num_experts_per_tok
    mean_score = (scores / scores.sum(1, keepdim=True)).mean(0)
    uneven = g.n_routed_experts * (load * mean_score).sum()
    return rounding.act(y).reshape(x_BSd.shape), uneven


def _experts(model: TrainableModel, name: str, x_Td: Tensor, weights_TE: Tensor) -> Tensor:
    """Every expert on every row: at this size fewer, larger products are the faster ones."""
    w, act, fp8 = model.weights, model.rounding.act, model.rounding.fp8
    limit = float(str(model.constants["swiglu_limit"]))

    def hidden(w1: Tensor, w3: Tensor) -> Tensor:
        return functional.silu(act(x_Td @ w1.T).clamp(max=limit)) * act(x_Td @ w3.T).clamp(
            -limit, limit
        )

    w1, w3, w2 = (w[f"{name}.experts.{leaf}"] for leaf in ("w1", "w3", "w2"))
    routed = torch.unflatten(hidden(w1.flatten(0, 1), w3.flatten(0, 1)), 1, (len(w1), -1))
    routed = fp8(act(routed * weights_TE[..., None]))
    y = routed.flatten(1) @ w2.transpose(1, 2).flatten(0, 1)
    w1, w3, w2 = (w[f"{name}.shared_experts.{leaf}"] for leaf in ("w1", "w3", "w2"))
    return y + act(fp8(act(hidden(w1, w3))) @ w2.T)
