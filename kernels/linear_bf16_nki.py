"""Linear layer with a plain weight, no activation quantisation: y = x times weight^T.

Dimensions:
    T tokens, any number; K input features, any, <= 32768; N output features, any.
    Kp = K padded to 128 (plain_weight.py).

Layouts: x [T, K] bf16 row-major; weight [Kp, N] bf16 or fp32; y [T, N] bf16 ("activation") or
fp32 ("accumulate").
Accumulation: fp32 in PSUM over all of K; bf16 products are exact. An fp32 weight makes the
Tensor engine take fp32 operands on both sides, at a quarter of its rate.
Expected error: fp32 summation, plus one rounding for bf16 output.

Tiling (LNC=2: each core takes half of the columns):
    for <= 512 tokens at a time (fewer for large K): x -> PE transpose -> x^T in SBUF
        for <= 512 columns at a time: DMA weight [128, Kp/128, columns]
            for 128 tokens: Kp/128 matmuls, tokens stationary; ScalarE: PSUM -> y -> HBM

Refuses: numerics other than trn2's, x that is not bf16, K > 32768.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.channel_tiles import contract, rows_by_channel
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.plain_weight import channel_major
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, ceil_div, core_share, largest_fold

__all__ = ["linear_bf16", "linear_bf16_kernel", "linear_bf16_partial_kernel"]

_MAX_K = 32768
_COLUMN_UNIT = 32
_CHUNK_BYTES = 65536
_TOKEN_BYTES = 65536
_MAX_TOKENS = 512


def _multiply(x_hbm: Any, weight_hbm: Any, y_hbm: Any, fold: int) -> None:
    """Write this core's columns of y."""
    num_tokens = x_hbm.shape[0]
    num_columns = weight_hbm.shape[1]
    num_k_tiles = weight_hbm.shape[0] // PARTITIONS
    itemsize = 4 if weight_hbm.dtype == nl.float32 else 2
    first_unit, num_units = core_share(ceil_div(num_columns, _COLUMN_UNIT))
    end_column = min(num_columns, (first_unit + num_units) * _COLUMN_UNIT)
    chunk = min(PSUM_BANK_FP32, max(_COLUMN_UNIT, _CHUNK_BYTES // itemsize // num_k_tiles))
    tiles = max(1, _TOKEN_BYTES // itemsize // num_k_tiles // PARTITIONS)
    block_tokens = min(_MAX_TOKENS, tiles * PARTITIONS)
    for token in range(0, num_tokens, block_tokens):
        tokens = min(block_tokens, num_tokens - token)
        xt_sb = rows_by_channel(x_hbm, token, tokens, num_k_tiles, fold, weight_hbm.dtype)
        for column in range(first_unit * _COLUMN_UNIT, end_column, chunk):
            columns = min(chunk, end_column - column)
            weight_sb = nl.ndarray(
                (PARTITIONS, num_k_tiles, columns), dtype=weight_hbm.dtype, buffer=nl.sbuf
            )
            nisa.dma_copy(
                dst=weight_sb,
                src=weight_hbm.ap(
                    pattern=[
                        [num_columns, PARTITIONS],
                        [num_columns * PARTITIONS, num_k_tiles],
                        [1, columns],
                    ],
                    offset=column,
                ),
            )
            for row in range(0, tokens, PARTITIONS):
                rows = min(PARTITIONS, tokens - row)
                y_psum = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)
                y_sb = nl.ndarray((rows, columns), dtype=y_hbm.dtype, buffer=nl.sbuf)
                contract(xt_sb[:, :, row : row + rows, :], weight_sb, y_psum)
                nisa.tensor_copy(dst=y_sb, src=y_psum, engine=nisa.engine.scalar)
                begin = token + row
                nisa.dma_copy(dst=y_hbm[begin : begin + rows, column : column + columns], src=y_sb)


@nki.jit
def linear_bf16_kernel(x_hbm: Any, weight_hbm: Any, fold: int) -> Any:
    """x [T, K] bf16, weight [Kp, N] -> y [T, N] bf16."""
    y_hbm = nl.ndarray(
        (x_hbm.shape[0], weight_hbm.shape[1]), dtype=nl.bfloat16, buffer=nl.shared_hbm
    )
    _multiply(x_hbm, weight_hbm, y_hbm, fold)
    return y_hbm


@nki.jit
def linear_bf16_partial_kernel(x_hbm: Any, weight_hbm: Any, fold: int) -> Any:
    """x [T, K] bf16, weight [Kp, N] -> unrounded y [T, N] fp32."""
    y_hbm = nl.ndarray(
        (x_hbm.shape[0], weight_hbm.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm
    )
    _multiply(x_hbm, weight_hbm, y_hbm, fold)
    return y_hbm


_KERNELS = {
    "activation": (linear_bf16_kernel, torch.bfloat16),
    "accumulate": (linear_bf16_partial_kernel, torch.float32),
}


def linear_bf16(
    x: torch.Tensor, weight: torch.Tensor, output: str, *, numerics: Numerics
) -> torch.Tensor:
    """y [T, N] of x [T, K] bf16 and weight [N, K] bf16 or fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or K > 32768.
        UsageError: shapes that do not meet, another word for output.
    """
    op = "linear_bf16"
    require_trn2(op, numerics)
    require_dtype(op, "x", x, torch.bfloat16)
    require_dtype(op, "weight", weight, torch.bfloat16, torch.float32)
    require(x.ndim == 2 and weight.ndim == 2, op, "x must be [T, K] and weight [N, K]")
    require_shape(op, "weight", weight, (weight.shape[0], x.shape[1]))
    require_limit(op, "K", x.shape[1], _MAX_K)
    require(output in _KERNELS, op, f"output is {output!r}: choose 'activation' or 'accumulate'")
    kernel, dtype = _KERNELS[output]
    if x.shape[0] == 0 or weight.shape[0] == 0:
        return x.new_empty((x.shape[0], weight.shape[0]), dtype=dtype)
    require(x.shape[1] > 0, op, "x has no channel")
    fold = largest_fold(x.shape[1], PARTITIONS // min(x.shape[0], PARTITIONS), PARTITIONS)
    return launch(kernel, x, channel_major(weight), fold)
