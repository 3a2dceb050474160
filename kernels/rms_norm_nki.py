"""RMSNorm: y = weight * x * rsqrt(mean(x^2) + eps).

Dimensions:
    T tokens, any number; d channels, <= 16384 (SBUF: 8 bytes a channel and partition).

Layouts: x [T, d] bf16 row-major; weight [d] bf16 or fp32; y [T, d] bf16.
Accumulation: squares and their sum in fp32; x * rstd * weight in fp32, one rounding to bf16.
Expected error: within the fp32 baseline (1 ulp of bf16 where a rounding border is crossed).

Tiling (LNC=2: each core takes half of the tokens):
    fold = largest c with c | d, T * c <= 128, 256 | d / c: few tokens, a row on c partitions
    weight -> SBUF once, replicated over partitions by a stride-0 DMA
    for 128/fold tokens at a time:
        x -> SBUF [tokens * fold, d / fold]
        ScalarE: square with a fused add-reduce     -> sum of squares a partition
        fold > 1: ones-block matmul [P, P] @ [P, 1] -> the token's sum on each of its partitions
        GpSimd rsqrt(sum / d + eps) (accurate; ScalarE's is piecewise polynomial)
        VectorE (x * rstd) * weight -> bf16 -> HBM

Refuses: numerics other than trn2's, d > 16384, inputs that are not bf16. Squares overflow for
|x| > 1.8e19, as in any fp32 RMSNorm: such a row becomes 0.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require_dtype, require_limit, require_shape, require_trn2
from kernels.inverse_rms import inverse_rms
from kernels.launch import launch, nisa, nki, nl
from kernels.tile_masks import same_group_mask
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["rms_norm", "rms_norm_kernel"]

_MAX_CHANNELS = 16384
# Below this a partition's work is shorter than an instruction's fixed cost.
_MIN_FOLDED_CHANNELS = 256


@nki.jit
def rms_norm_kernel(x_hbm: Any, weight_hbm: Any, eps: float, fold: int) -> Any:
    """x [T, d] bf16, weight [d] -> y [T, d] bf16; each row lies on `fold` partitions."""
    num_tokens, channels = x_hbm.shape
    width = channels // fold
    tile_tokens = min(num_tokens, PARTITIONS // fold)
    y_hbm = nl.ndarray((num_tokens, channels), dtype=x_hbm.dtype, buffer=nl.shared_hbm)
    x_rows = x_hbm.reshape((num_tokens * fold, width))
    y_rows = y_hbm.reshape((num_tokens * fold, width))

    weight_sb = nl.ndarray((tile_tokens * fold, width), dtype=weight_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=weight_sb,
        src=weight_hbm.ap(pattern=[[0, tile_tokens], [width, fold], [1, width]]),
    )
    if fold > 1:
        group_sb = same_group_mask(tile_tokens, fold)
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for first in range(first_token, end_token, tile_tokens):
        rows = min(tile_tokens, end_token - first) * fold
        begin = first * fold
        x_sb = nl.ndarray((rows, width), dtype=x_hbm.dtype, buffer=nl.sbuf)
        y_sb = nl.ndarray((rows, width), dtype=x_hbm.dtype, buffer=nl.sbuf)
        sum_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=x_rows[begin : begin + rows, :])
        # The squares themselves are not needed: y_sb takes them until it holds the result.
        nisa.activation_reduce(
            dst=y_sb, op=nl.square, data=x_sb, reduce_op=nl.add, reduce_res=sum_sb
        )
        total = sum_sb
        if fold > 1:
            total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=total, stationary=group_sb[0:rows, 0:rows], moving=sum_sb, accumulate=False
            )
        rstd_sb = inverse_rms(total, channels, eps)
        nisa.scalar_tensor_tensor(
            dst=y_sb,
            data=x_sb,
            op0=nl.multiply,
            operand0=rstd_sb,
            op1=nl.multiply,
            operand1=weight_sb[0:rows, :],
        )
        nisa.dma_copy(dst=y_rows[begin : begin + rows, :], src=y_sb)
    return y_hbm


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, numerics: Numerics
) -> torch.Tensor:
    """y [..., d] bf16 of x [..., d] bf16 and weight [d] bf16 or fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or d > 16384.
        UsageError: weight of another width.
    """
    require_trn2("rms_norm", numerics)
    require_dtype("rms_norm", "x", x, torch.bfloat16)
    require_dtype("rms_norm", "weight", weight, torch.bfloat16, torch.float32)
    channels = x.shape[-1]
    require_shape("rms_norm", "weight", weight, (channels,))
    require_limit("rms_norm", "d", channels, _MAX_CHANNELS)
    if x.numel() == 0:
        return x.new_empty(x.shape)
    rows = x.reshape(-1, channels)
    fold = largest_fold(
        channels, PARTITIONS // min(rows.shape[0], PARTITIONS), _MIN_FOLDED_CHANNELS
    )
    return launch(rms_norm_kernel, rows, weight, float(eps), fold).reshape(x.shape)
