"""Rotary embedding of adjacent pairs in the last channels; the inverse takes -sin.

Dimensions:
    T tokens, any number; H vectors a token (product of the middle axes), 1..128; D channels,
    <= 8192; R = 2 * len(cos) rotated channels, the last ones, even, <= D.

Layouts: x, y [T, H, D] bf16 row-major; cos, sin [T, R/2] fp32.
Accumulation: fp32, one rounding to bf16; the straight channels keep their bits.
Expected error: within the fp32 baseline.

Tiling (LNC=2: each core takes half of the tokens):
    for 128 // H tokens at a time: rows (t, h) on partitions
        x -> SBUF; a token's angles -> its H partitions by a stride-0 DMA
        VectorE: pairs * cos, pairs * sin (angles broadcast over the pair),
                 even = even cos - odd sin, odd = odd cos + even sin, in place; -> HBM

Refuses: numerics other than trn2's, x that is not bf16, H > 128, D > 8192.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, core_share

__all__ = ["rope", "rope_kernel"]

_MAX_CHANNELS = 8192


@nki.jit
def rope_kernel(x_hbm: Any, cos_hbm: Any, sin_hbm: Any) -> Any:
    """x [T, H, D] bf16, cos and sin [T, R/2] fp32 -> y [T, H, D] bf16."""
    num_tokens, heads, channels = x_hbm.shape
    pairs = cos_hbm.shape[1]
    y_hbm = nl.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=nl.shared_hbm)
    x_rows = x_hbm.reshape((num_tokens * heads, channels))
    y_rows = y_hbm.reshape((num_tokens * heads, channels))
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    tile_tokens = PARTITIONS // heads
    for token in range(first_token, end_token, tile_tokens):
        tokens = min(tile_tokens, end_token - token)
        rows = tokens * heads
        row = token * heads
        x_sb = nl.ndarray((rows, channels), dtype=x_hbm.dtype, buffer=nl.sbuf)
        angle_sb = nl.ndarray((rows, 2, pairs), dtype=nl.float32, buffer=nl.sbuf)
        turned_sb = nl.ndarray((rows, 2, pairs, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=x_rows[row : row + rows, :])
        pattern = [[pairs, tokens], [0, heads], [1, pairs]]
        offset = token * pairs
        nisa.dma_copy(dst=angle_sb[:, 0, :], src=cos_hbm.ap(pattern=pattern, offset=offset))
        nisa.dma_copy(dst=angle_sb[:, 1, :], src=sin_hbm.ap(pattern=pattern, offset=offset))
        x_pairs = x_sb[:, channels - 2 * pairs : channels].reshape_dim(1, (pairs, 2))
        for part in range(2):
            nisa.tensor_tensor(
                dst=turned_sb[:, part, :, :],
                data1=x_pairs,
                data2=angle_sb[:, part, :].expand_dim(2).broadcast(2, 2),
                op=nl.multiply,
            )
        nisa.tensor_tensor(
            dst=x_pairs[:, :, 0],
            data1=turned_sb[:, 0, :, 0],
            data2=turned_sb[:, 1, :, 1],
            op=nl.subtract,
        )
        nisa.tensor_tensor(
            dst=x_pairs[:, :, 1],
            data1=turned_sb[:, 0, :, 1],
            data2=turned_sb[:, 1, :, 0],
            op=nl.add,
        )
        nisa.dma_copy(dst=y_rows[row : row + rows, :], src=x_sb)
    return y_hbm


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, numerics: Numerics
) -> torch.Tensor:
    """y [T, ..., D] bf16 of x [T, ..., D] bf16, cos and sin [T, R/2] fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or size.
        UsageError: R wider than D, another number of rows.
    """
    op = "rope"
    require_trn2(op, numerics)
    require_dtype(op, "x", x, torch.bfloat16)
    require_dtype(op, "cos", cos, torch.float32)
    require_dtype(op, "sin", sin, torch.float32)
    require(x.ndim >= 2 and cos.ndim == 2, op, "x must be [T, ..., D] and cos [T, R/2]")
    require_shape(op, "sin", sin, tuple(cos.shape))
    require_shape(op, "cos", cos, (x.shape[0], cos.shape[1]))
    channels = x.shape[-1]
    require(2 * cos.shape[1] <= channels, op, f"R is {2 * cos.shape[1]}, x has D={channels}")
    if x.numel() == 0 or cos.shape[1] == 0:
        return x.clone()
    heads = x.numel() // (x.shape[0] * channels)
    require_limit(op, "H", heads, PARTITIONS)
    require_limit(op, "D", channels, _MAX_CHANNELS)
    return launch(rope_kernel, x.reshape(x.shape[0], heads, channels), cos, sin).reshape(x.shape)
