"""Mixture of experts with a shared expert (model.md §2.8)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from references.oracle.arithmetic import Arithmetic
from references.oracle.checkpoint import Checkpoint, Floats
from references.oracle.config import OracleConfig
from references.oracle.rows import stable_best

__all__ = ["MixtureOfExperts"]


class MixtureOfExperts:
    """The feed-forward part of one layer, its tensors under `prefix`."""

    def __init__(
        self,
        config: OracleConfig,
        weights: Checkpoint,
        arithmetic: Arithmetic,
        prefix: str,
        top_k: int,
    ) -> None:
        self.c, self.w, self.a, self.prefix, self.top_k = config, weights, arithmetic, prefix, top_k

    def __call__(self, x: Floats) -> Floats:
        """y [S, d] of x [S, d]; the sum of the experts is rounded once, at the end."""
        share = self.shares(x)
        total = np.zeros_like(x)
        for expert in np.flatnonzero(share.any(0)):
            rows = np.flatnonzero(share[:, expert])
            name = f"{self.prefix}.experts.{expert}"
            matrices = tuple(self.w.fp4(f"{name}.{leaf}") for leaf in ("w1", "w3", "w2"))
            total[rows] += self._expert(x[rows], matrices, share[rows, expert, None])
        name = f"{self.prefix}.shared_experts"
        matrices = tuple(self.w.fp8(f"{name}.{leaf}") for leaf in ("w1", "w3", "w2"))
        return self.a.act(total + self._expert(x, matrices, np.ones((1, 1), self.a.dtype)))

    def shares(self, x: Floats) -> Floats:
        """[S, E]: the routing weight of each chosen expert, 0 elsewhere."""
        logits = x @ self.w.plain(f"{self.prefix}.gate.weight").T / self.a.dtype(self.c.gate_temp)
        scores = np.sqrt(np.maximum(logits, 0) + np.log1p(np.exp(-np.abs(logits))))
        chosen = stable_best(scores + self.w.plain(f"{self.prefix}.gate.bias"), self.top_k)
        weights = np.where(chosen, scores, 0)
        if self.c.norm_topk_prob and self.top_k > 1:
            weights = weights / (weights.sum(1, keepdims=True) + self.a.dtype(1e-20))
        shares: Floats = weights * self.a.dtype(self.c.routed_scaling_factor)
        return shares

    def _expert(
        self, x: Floats, matrices: tuple[Floats, ...], weight: npt.NDArray[np.floating]
    ) -> Floats:
        w1, w3, w2 = matrices
        limit, on_grid = self.c.swiglu_limit, self.a.fp8(x)
        gate = np.minimum(self.a.act(on_grid @ w1.T), limit)
        up = np.clip(self.a.act(on_grid @ w3.T), -limit, limit)
        silu = gate * np.exp(-np.logaddexp(0, -gate))  # no overflow for very negative gates
        hidden = self.a.act(weight * silu * up)
        return self.a.act(self.a.fp8(hidden) @ w2.T)
