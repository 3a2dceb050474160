"""TileKernels' engram family (model.md §5.6, §2.9)."""

from __future__ import annotations

import torch

from harness.core.numerics import FAST
from references.engram_gate import engram_gate
from references.operands import refuse, require, require_float, require_ids, require_shape

__all__ = ["engram"]


class engram:  # noqa: N801 - a namespace with the vendor's name
    """n-gram hashing and the gate."""

    @staticmethod
    def engram_hash(
        ngram_token_ids: torch.Tensor,
        multipliers: torch.Tensor,
        vocab_sizes: torch.Tensor,
        offsets: torch.Tensor,
    ) -> torch.Tensor:
        """Table rows int32 [layers, T, (N-1)*heads].

        Args:
            ngram_token_ids: int32 [T, N] compressed ids, newest first, blocked ones already pad.
            multipliers: int64 [layers, N].
            vocab_sizes: int32 [layers, N-1, heads] primes.
            offsets: int32 [layers, (N-1)*heads] first row of each prime.

        Raises:
            UsageError: shapes that do not meet, wrong dtypes.
        """
        op = "engram_hash"
        require_ids(op, "ngram_token_ids", ngram_token_ids, ndim=2)
        require_ids(op, "vocab_sizes", vocab_sizes, ndim=3)
        require_ids(op, "offsets", offsets, ndim=2)
        if multipliers.dtype != torch.int64:
            refuse(op, f"multipliers have dtype {multipliers.dtype}: int64")
        layers, orders, heads = vocab_sizes.shape
        require_shape(op, "ngram_token_ids", ngram_token_ids, (len(ngram_token_ids), orders + 1))
        require_shape(op, "multipliers", multipliers, (layers, orders + 1))
        require_shape(op, "offsets", offsets, (layers, orders * heads))
        products = ngram_token_ids.long() * multipliers.unsqueeze(1)  # [layers, T, N]
        mixed, columns = products[..., 0], []
        for order in range(orders):
            mixed = mixed ^ products[..., order + 1]
            columns.append(mixed.unsqueeze(-1) % vocab_sizes[:, order].long().unsqueeze(1))
        return (torch.cat(columns, dim=-1) + offsets.long().unsqueeze(1)).int()

    @staticmethod
    def fused_weight(wh: torch.Tensor, we: torch.Tensor) -> torch.Tensor:
        """float32 product of the bf16 query and key weights [m, d]."""
        require_float("fused_weight", "wh", wh, ndim=2)
        require_shape("fused_weight", "we", we, tuple(wh.shape))
        return wh.float() * we.float()

    @staticmethod
    def engram_gate_fwd(
        x: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        weight_fused: torch.Tensor,
        eps: float,
        clamp_value: float = 1e-6,
        save_for_backward: bool = False,
    ) -> torch.Tensor:
        """x [T, m, d] plus the gated value v [T, d]; keys k [T, m, d], bf16 out.

        Raises:
            UsageError: another clamp than the model's, a backward pass, shapes that do not meet.
        """
        require(clamp_value == 1e-6, "engram_gate_fwd", f"clamp_value is {clamp_value}: 1e-6")
        require(not save_for_backward, "engram_gate_fwd", "there is no backward pass here")
        ones = torch.ones_like(weight_fused)
        return engram_gate(x, k, v, weight_fused, ones, eps, numerics=FAST)
