"""TileKernels' mHC family (model.md §5.6, §2.3): the V4 form, in which each sublayer collapses
with its own `pre`. V4.1 keeps `pre` for the next sublayer and uses the pieces."""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.core.numerics import FAST
from references.hc_collapse import hc_collapse
from references.hc_expand import hc_expand
from references.hc_mixes import sinkhorn
from references.operands import require, require_float, require_shape

__all__ = ["mhc"]


class mhc:  # noqa: N801 - a namespace with the vendor's name
    """Hyper-connections."""

    @staticmethod
    def expand_from_embedding(x: torch.Tensor, mult: int) -> torch.Tensor:
        """[T, d] to residual streams [T, mult, d]."""
        require_float("expand_from_embedding", "x", x, ndim=2)
        return x.unsqueeze(1).repeat(1, mult, 1)

    @staticmethod
    def mhc_pre_norm_fn(residual: torch.Tensor, fn: torch.Tensor, norm_eps: float) -> torch.Tensor:
        """float32 mixes [T, (2+m)m]: fn times the flattened streams over their RMS."""
        op = "mhc_pre_norm_fn"
        require_float(op, "residual", residual, ndim=3)
        flat = residual.float().flatten(1)
        require_shape(op, "fn", fn, (fn.shape[0], flat.shape[1]))
        norm = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
        return functional.linear(flat, fn.float()) * norm

    @staticmethod
    def mhc_pre_split_mixes(
        mixes: torch.Tensor,
        scale: torch.Tensor,
        base: torch.Tensor,
        mult: int,
        post_mult_value: float = 2.0,
        pre_eps: float = 1e-6,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """pre [T, m], post [T, m] and comb logits [T, m, m] of mixes [T, (2+m)m]."""
        op = "mhc_pre_split_mixes"
        require_float(op, "mixes", mixes, ndim=2)
        require_shape(op, "mixes", mixes, (len(mixes), (2 + mult) * mult))
        require_shape(op, "scale", scale, (3,))
        require_shape(op, "base", base, (mixes.shape[1],))
        pre = torch.sigmoid(mixes[:, :mult] * scale[0] + base[:mult]) + pre_eps
        middle = slice(mult, 2 * mult)
        post = post_mult_value * torch.sigmoid(mixes[:, middle] * scale[1] + base[middle])
        comb = mixes[:, 2 * mult :] * scale[2] + base[2 * mult :]
        return pre, post, comb.reshape(-1, mult, mult)

    @staticmethod
    def sinkhorn_normalize(logits: torch.Tensor, repeat: int, eps: float) -> torch.Tensor:
        """Softmax over rows, then columns and rows in turn, ending with columns."""
        require_float("sinkhorn_normalize", "logits", logits, ndim=3)
        require(repeat >= 1, "sinkhorn_normalize", f"repeat is {repeat}: at least 1")
        return sinkhorn(logits.float(), eps, repeat)

    @staticmethod
    def mhc_pre_apply_mix(residual: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        """[T, d] bf16: the streams weighted by pre [T, m]."""
        return hc_collapse(residual, pre, numerics=FAST)

    @staticmethod
    def mhc_pre(
        residual: torch.Tensor,
        fn: torch.Tensor,
        scale: torch.Tensor,
        base: torch.Tensor,
        norm_eps: float,
        post_mult_value: float = 2.0,
        pre_eps: float = 1e-6,
        sinkhorn_eps: float = 1e-6,
        sinkhorn_repeat: int = 20,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The sublayer's input and (post, comb) of residual [T, m, d]."""
        mixes = mhc.mhc_pre_norm_fn(residual, fn, norm_eps)
        mult = residual.shape[1]
        pre, post, logits = mhc.mhc_pre_split_mixes(
            mixes, scale, base, mult, post_mult_value, pre_eps
        )
        comb = mhc.sinkhorn_normalize(logits, sinkhorn_repeat, sinkhorn_eps)
        return mhc.mhc_pre_apply_mix(residual, pre), (post, comb)

    @staticmethod
    def mhc_post(
        x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """New streams [T, m, d] bf16 from the sublayer's output x [T, d]."""
        return hc_expand(x, residual, post, comb, numerics=FAST)

    @staticmethod
    def mhc_head(
        residual: torch.Tensor,
        fn: torch.Tensor,
        scale: torch.Tensor,
        base: torch.Tensor,
        norm_eps: float,
        pre_eps: float = 1e-6,
    ) -> torch.Tensor:
        """V4's output collapse: weights sigmoid(z * scale + base) + eps, fn [m, m*d], scale [1]."""
        z = mhc.mhc_pre_norm_fn(residual, fn, norm_eps)
        require_shape("mhc_head", "base", base, (residual.shape[1],))
        return hc_collapse(residual, torch.sigmoid(z * scale + base) + pre_eps, numerics=FAST)
