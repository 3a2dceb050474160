"""Grouped first half of the attention output: u_g = wo_a[g] . concat(heads of group g).

Dimensions:
    T tokens, any number; G groups; H heads on this rank, a multiple of G; D head dim;
    K = H / G * D channels a group, a multiple of 32, <= 32768; L output features a group, a
    multiple of 32 (scale blocks do not straddle groups).

Layouts: o [T, G, K] bf16 row-major; weight codes uint8 [Kp, G*L], scale bf16 [Kp/32, G*L/32] as
in linear_fp8; u [T, G*L] fp32, unrounded: a rank may hold only a part of a group.
Accumulation: fp32 in PSUM. The weight is dequantised to bf16, which is exact; o is not quantised.
Expected error: fp32 summation of exact products.

Tiling (LNC=2: each core takes half of the 32-column blocks):
    for <= 512 (token, group) rows at a time: o -> PE transpose -> SBUF, all groups together
        for each group, for <= 512 columns: weight -> bf16 in SBUF       (fp8_weight_tiles.py)
            for 128 tokens: K/128 matmuls on every G-th column of o^T -> PSUM -> fp32 -> HBM
At one head a rank (cp = 64) G is 1 and K is 512.

Refuses: numerics other than trn2's, o that is not bf16, K > 32768, L no multiple of 32, weights
not "fp8_block".
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.errors import KernelError
from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from kernels.channel_tiles import contract, rows_by_channel
from kernels.contract import require, require_dtype, require_limit, require_trn2, require_weight
from kernels.fp8_activation import BLOCK
from kernels.fp8_weight_tiles import chunk_columns, weight_columns
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, core_share, largest_fold
from kernels.weight_layout import prepared_fp8

__all__ = ["output_projection", "output_projection_kernel"]

_MAX_K = 32768
_ROW_ELEMENTS = 32768
_MAX_ROWS = 512


@nki.jit
def output_projection_kernel(
    o_hbm: Any, codes_hbm: Any, scale_hbm: Any, groups: int, fold: int
) -> Any:
    """o [T * G, K] bf16, prepared weight [Kp, G*L] -> u [T, G*L] fp32."""
    num_rows = o_hbm.shape[0]
    num_columns = codes_hbm.shape[1]
    num_k_tiles = codes_hbm.shape[0] // PARTITIONS
    group_columns = num_columns // groups
    u_hbm = nl.ndarray((num_rows // groups, num_columns), dtype=nl.float32, buffer=nl.shared_hbm)
    first_block, num_blocks = core_share(num_columns // BLOCK)
    first_column, end_column = first_block * BLOCK, (first_block + num_blocks) * BLOCK
    chunk = min(PSUM_BANK_FP32, chunk_columns(num_k_tiles))
    fitting = min(_MAX_ROWS, max(PARTITIONS, _ROW_ELEMENTS // num_k_tiles))
    block_rows = max(1, fitting // groups) * groups
    for row in range(0, num_rows, block_rows):
        rows = min(block_rows, num_rows - row)
        tokens = rows // groups
        ot_sb = rows_by_channel(o_hbm, row, rows, num_k_tiles, fold, nl.bfloat16)
        by_group = ot_sb.reshape_dim(2, (tokens, groups))
        for group in range(groups):
            begin = max(first_column, group * group_columns)
            end = min(end_column, (group + 1) * group_columns)
            for column in range(begin, end, chunk):
                columns = min(chunk, end - column)
                weight_sb = weight_columns(codes_hbm, scale_hbm, column, columns)
                for token in range(0, tokens, PARTITIONS):
                    here = min(PARTITIONS, tokens - token)
                    u_psum = nl.ndarray((here, columns), dtype=nl.float32, buffer=nl.psum)
                    u_sb = nl.ndarray((here, columns), dtype=nl.float32, buffer=nl.sbuf)
                    contract(by_group[:, :, token : token + here, group, :], weight_sb, u_psum)
                    nisa.tensor_copy(dst=u_sb, src=u_psum, engine=nisa.engine.scalar)
                    first = row // groups + token
                    nisa.dma_copy(
                        dst=u_hbm[first : first + here, column : column + columns], src=u_sb
                    )
    return u_hbm


def output_projection(
    o: torch.Tensor, weight: QuantisedWeight, groups: int, *, numerics: Numerics
) -> torch.Tensor:
    """u [T, G, L] fp32 of o [T, H, D] bf16 and weight [G*L, H/G*D].

    Raises:
        KernelError: UNSUPPORTED numerics, dtype, K > 32768, L no multiple of 32.
        UsageError: groups that do not divide heads or rows, shapes that do not meet.
    """
    op = "output_projection"
    require_trn2(op, numerics)
    require_dtype(op, "o", o, torch.bfloat16)
    require(o.ndim == 3, op, f"o has shape {tuple(o.shape)}: it must be [T, H, D]")
    num_tokens, num_heads, head_dim = o.shape
    require(groups >= 1 and num_heads % groups == 0, op, f"{groups} groups, {num_heads} heads")
    channels = num_heads // groups * head_dim
    require_weight(op, weight, "fp8_block", channels)
    require(weight.out_features % groups == 0, op, f"{weight.out_features} rows, {groups} groups")
    require_limit(op, "K", channels, _MAX_K)
    features = weight.out_features // groups
    if features % BLOCK:
        raise KernelError("UNSUPPORTED", f"{op}: L is {features}, no multiple of 32")
    shape = (num_tokens, groups, features)
    if num_tokens == 0 or features == 0:
        return o.new_empty(shape, dtype=torch.float32)
    prepared = prepared_fp8(weight)
    rows = o.reshape(num_tokens * groups, channels)
    fold = largest_fold(channels, PARTITIONS // min(rows.shape[0], PARTITIONS), PARTITIONS)
    u = launch(output_projection_kernel, rows, prepared.codes, prepared.scale, groups, fold)
    return u.reshape(shape)
