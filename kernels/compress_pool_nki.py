"""Compressor pooling: per channel a softmax over the gates of each group of rows, weighted sum.

Dimensions:
    T rows, a multiple of ratio (the caller holds back an open group); D channels, any;
    ratio rows a group, 1..16; G = T / ratio groups.

Layouts: kv, gate [T, D] fp32 row-major, unrounded sums; latent [G, D] bf16.
Accumulation: fp32 throughout, one rounding to bf16. Ratio 1 is the rounding alone.
Expected error: within the fp32 baseline.

Tiling (LNC=2: each core takes half of the groups):
    fold = largest c with 16c | D and groups * c <= 128: few groups lie on c partitions each
    for 128 folded groups, for <= 1024 channels:
        kv, gate -> SBUF [128, ratio, channels]
        VectorE max over ratio (a strided view), gate - max; ScalarE exp
        VectorE sum of e, sum of e * kv, reciprocal, multiply -> bf16 -> HBM

Refuses: numerics other than trn2's, inputs that are not fp32, ratio > 16.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["compress_pool", "compress_pool_kernel"]

_MAX_RATIO = 16
_CHUNK_CHANNELS = 1024
_MIN_FOLDED_CHANNELS = 16


def _load_groups(hbm: Any, ratio: int, fold: int, place: Any) -> Any:
    """fp32 [rows, ratio, columns] of hbm [T, D]; place = (group, groups, column, columns)."""
    channels = hbm.shape[1]
    width = channels // fold
    group, groups, column, columns = place
    tile_sb = nl.ndarray((groups * fold, ratio, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=tile_sb,
        src=hbm.ap(
            pattern=[
                [ratio * channels, groups],
                [width, fold],
                [channels, ratio],
                [1, columns],
            ],
            offset=group * ratio * channels + column,
        ),
    )
    return tile_sb


def _pooled(kv_sb: Any, gate_sb: Any) -> Any:
    """bf16 [rows, columns]; gate_sb is used up."""
    rows, ratio, columns = kv_sb.shape
    flat = (rows, columns)
    pooled_sb = nl.ndarray(flat, dtype=nl.bfloat16, buffer=nl.sbuf)
    largest_sb = nl.ndarray(flat, dtype=nl.float32, buffer=nl.sbuf)
    total_sb = nl.ndarray(flat, dtype=nl.float32, buffer=nl.sbuf)
    sum_sb = nl.ndarray(flat, dtype=nl.float32, buffer=nl.sbuf)
    by_channel = (0, 2, 1)
    nisa.tensor_reduce(dst=largest_sb, op=nl.maximum, data=gate_sb.permute(by_channel), axis=2)
    nisa.tensor_tensor(
        dst=gate_sb,
        data1=gate_sb,
        data2=largest_sb.expand_dim(1).broadcast(1, ratio),
        op=nl.subtract,
    )
    nisa.activation(dst=gate_sb, op=nl.exp, data=gate_sb)
    nisa.tensor_reduce(dst=total_sb, op=nl.add, data=gate_sb.permute(by_channel), axis=2)
    nisa.tensor_tensor(dst=gate_sb, data1=gate_sb, data2=kv_sb, op=nl.multiply)
    nisa.tensor_reduce(dst=sum_sb, op=nl.add, data=gate_sb.permute(by_channel), axis=2)
    nisa.reciprocal(dst=total_sb, data=total_sb)
    nisa.tensor_tensor(dst=pooled_sb, data1=sum_sb, data2=total_sb, op=nl.multiply)
    return pooled_sb


@nki.jit
def compress_pool_kernel(kv_hbm: Any, gate_hbm: Any, ratio: int, fold: int) -> Any:
    """kv, gate [T, D] fp32 -> latent [T / ratio, D] bf16."""
    channels = kv_hbm.shape[1]
    num_groups = kv_hbm.shape[0] // ratio
    width = channels // fold
    latent_hbm = nl.ndarray((num_groups, channels), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    latent_rows = latent_hbm.reshape((num_groups * fold, width))
    first_group, my_groups = core_share(num_groups)
    end_group = first_group + my_groups
    tile_groups = PARTITIONS // fold
    for group in range(first_group, end_group, tile_groups):
        groups = min(tile_groups, end_group - group)
        for column in range(0, width, _CHUNK_CHANNELS):
            columns = min(_CHUNK_CHANNELS, width - column)
            place = (group, groups, column, columns)
            kv_sb = _load_groups(kv_hbm, ratio, fold, place)
            if ratio == 1:
                pooled_sb = nl.ndarray((groups * fold, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
                nisa.tensor_copy(dst=pooled_sb, src=kv_sb[:, 0, :])
            else:
                pooled_sb = _pooled(kv_sb, _load_groups(gate_hbm, ratio, fold, place))
            nisa.dma_copy(
                dst=latent_rows[group * fold : (group + groups) * fold, column : column + columns],
                src=pooled_sb,
            )
    return latent_hbm


def compress_pool(
    kv: torch.Tensor, gate: torch.Tensor, ratio: int, *, numerics: Numerics
) -> torch.Tensor:
    """latent [T / ratio, D] bf16 of kv and gate [T, D] fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or ratio > 16.
        UsageError: T no multiple of ratio, shapes that differ.
    """
    op = "compress_pool"
    require_trn2(op, numerics)
    require_dtype(op, "kv", kv, torch.float32)
    require_dtype(op, "gate", gate, torch.float32)
    require(kv.ndim == 2, op, f"kv has shape {tuple(kv.shape)}: it must be [T, D]")
    require_shape(op, "gate", gate, tuple(kv.shape))
    require(ratio >= 1 and kv.shape[0] % max(ratio, 1) == 0, op, f"T is no multiple of {ratio}")
    require_limit(op, "ratio", ratio, _MAX_RATIO)
    num_groups, channels = kv.shape[0] // ratio, kv.shape[1]
    if num_groups == 0 or channels == 0:
        return kv.new_empty((num_groups, channels), dtype=torch.bfloat16)
    fold = largest_fold(channels, PARTITIONS // min(num_groups, PARTITIONS), _MIN_FOLDED_CHANNELS)
    return launch(compress_pool_kernel, kv, gate, ratio, fold)
