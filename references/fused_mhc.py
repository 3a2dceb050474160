"""DeepGEMM's hyper-connection faces (model.md §5.2, tf32_hc_prenorm_gemm and mega_mhc)."""

from __future__ import annotations

import torch

from harness.core.numerics import FAST
from references.hc_collapse import hc_collapse
from references.hc_expand import hc_expand
from references.hc_mixes import hc_mixes
from references.operands import require, require_float, require_multiple, require_shape
from references.rms_norm import rms_norm
from references.scaled_matrices import ScaledMatrix, per_token_cast

__all__ = ["mega_mhc", "tf32_hc_prenorm_gemm"]


def tf32_hc_prenorm_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    sqr_sum: torch.Tensor,
    num_splits: int | None = None,
) -> None:
    """d [M, N] = a [M, K] b [N, K]^T and sqr_sum [M] = sum of a^2, in one pass, in place.

    With num_splits K is cut into as many equal parts and both outputs carry them in front:
    d [splits, M, N], sqr_sum [splits, M]. Sums are float32 (the CUDA kernel's are tf32).

    Raises:
        UsageError: shapes that do not meet, K no multiple of num_splits, outputs not float32.
    """
    op = "tf32_hc_prenorm_gemm"
    require_float(op, "a", a, ndim=2)
    require_float(op, "b", b, ndim=2)
    rows, channels = a.shape
    require_shape(op, "b", b, (b.shape[0], channels))
    splits = num_splits or 1
    require_multiple(op, "K", channels, splits)
    lead = () if num_splits is None else (splits,)
    require_shape(op, "d", d, (*lead, rows, b.shape[0]))
    require_shape(op, "sqr_sum", sqr_sum, (*lead, rows))
    require(d.dtype == sqr_sum.dtype == torch.float32, op, "d and sqr_sum must be float32")
    left = a.float().reshape(rows, splits, channels // splits).transpose(0, 1)
    right = b.float().reshape(b.shape[0], splits, channels // splits).permute(1, 2, 0)
    d.copy_((left @ right).reshape(d.shape))
    sqr_sum.copy_(left.square().sum(-1).reshape(sqr_sum.shape))


def mega_mhc(
    x: torch.Tensor,
    residual: torch.Tensor,
    shifted_prev_mix: torch.Tensor | None,
    post_mix: torch.Tensor,
    comb_res_mix: torch.Tensor,
    fn: torch.Tensor,
    mix_scales: torch.Tensor,
    mix_bases: torch.Tensor,
    hc_norm_eps: float,
    hc_pre_eps: float,
    sinkhorn_iters: int,
    rmsnorm_weight: torch.Tensor,
    rmsnorm_eps: float,
    new_residual: torch.Tensor,
    new_prev: torch.Tensor,
    new_post: torch.Tensor,
    new_comb: torch.Tensor,
    y_bf16: torch.Tensor,
    y_fp8: ScaledMatrix | None = None,
) -> None:
    """End of one sublayer and start of the next, in place.

    x [T, H] is the sublayer's output, residual [T, m, H]; post_mix [T, m, 1] and comb_res_mix
    [T, m, m] (source, destination) its coefficients. new_residual is the expanded stream,
    new_prev [T, m, 1], new_post and new_comb the coefficients made from it, and y_bf16 [T, H]
    the RMSNorm of the stream collapsed with `shifted_prev_mix` [T, m, 1] (V4.1), or with
    new_prev where that is None (V4). hc_pre_eps is also Sinkhorn's eps. y_fp8, if given, takes y's
    cast: e4m3 data [T, H] and float32 scales [T, H/32].

    Raises:
        UsageError: an output of the wrong shape, operands that do not meet.
    """
    op = "mega_mhc"
    rows, m, width = residual.shape
    for name, output, shape in (
        ("new_residual", new_residual, (rows, m, width)),
        ("new_prev", new_prev, (rows, m, 1)),
        ("new_post", new_post, (rows, m, 1)),
        ("new_comb", new_comb, (rows, m, m)),
        ("y_bf16", y_bf16, (rows, width)),
    ):
        require_shape(op, name, output, shape)
    require_shape(op, "post_mix", post_mix, (rows, m, 1))
    streams = hc_expand(x, residual, post_mix.squeeze(-1), comb_res_mix, numerics=FAST)
    pre, post, comb = hc_mixes(
        streams, fn, mix_bases, mix_scales, hc_norm_eps, hc_pre_eps, sinkhorn_iters, numerics=FAST
    )
    weights = pre if shifted_prev_mix is None else shifted_prev_mix.squeeze(-1)
    collapsed = hc_collapse(streams, weights, numerics=FAST)
    y_bf16.copy_(rms_norm(collapsed, rmsnorm_weight, rmsnorm_eps, numerics=FAST))
    if y_fp8 is not None:
        _cast_into(op, y_bf16, y_fp8)
    new_residual.copy_(streams)
    new_prev.copy_(pre.unsqueeze(-1))
    new_post.copy_(post.unsqueeze(-1))
    new_comb.copy_(comb)


def _cast_into(op: str, y: torch.Tensor, y_fp8: ScaledMatrix) -> None:
    """y's e4m3 data and scales, in place."""
    cast = per_token_cast(op, y, "e4m3", 32, True)
    for name, output, value in zip(("data", "scales"), y_fp8, cast, strict=True):
        require_shape(op, f"y_fp8 {name}", output, tuple(value.shape))
        require(output.dtype == value.dtype, op, f"y_fp8 {name} must be {value.dtype}")
        output.copy_(value)
