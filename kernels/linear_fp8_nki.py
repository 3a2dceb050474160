"""Linear layer with a 32x32 block-scaled fp8 weight: y = q(x) times weight^T.

Dimensions:
    T tokens, any number; K input features, a multiple of 32, <= 32768; N output features, any.
    Kp = K padded to 128; Np = N padded to 32 (both in the prepared weight, weight_layout.py).

Layouts: x [T, K] bf16 row-major; weight codes uint8 [Kp, Np] holding nl.float8_e4m3 (max 240);
scale bf16 [Kp/32, Np/32], powers of two; y [T, Np] bf16 ("activation") or fp32 ("accumulate").
Accumulation: fp32 in PSUM over all of K. Activations (per 32) and weights are dequantised to bf16
first, which is exact: 4 significant bits times a power of two.
Expected error: fp32 summation of exact products, plus one rounding for bf16 output.

Tiling (both cores at LNC=2: each takes half of the 32-column blocks of N):
    for <= 512 tokens at a time (fewer for large K: x^T stays in SBUF):
        quantise, dequantise and transpose the rows           (fp8_activation.py)
        for <= 512 columns at a time (more for small K, fewer for large):
            DMA codes [128, K/128, columns] and scales, replicated 32 times down the partitions
            VectorE and GpSimd, half each: codes * scale -> bf16            (fp8_weight_tiles.py)
            for 128 tokens, for 512 columns: K/128 matmuls, tokens stationary, weights moving
            ScalarE: PSUM -> bf16 or fp32 -> HBM
Tokens are stationary also in decode: the bound there is the dequantisation, K * N / 256 cycles of
VectorE and of GpSimd, and this order needs no transpose of the result.

Refuses: numerics other than trn2's, x that is not bf16, K > 32768, weights not "fp8_block", scale
bytes of NaN. Values of x must be finite.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from kernels.channel_tiles import contract
from kernels.contract import refuse, require_dtype, require_limit, require_trn2, require_weight
from kernels.fp8_activation import BLOCK, activations_by_channel
from kernels.fp8_weight_tiles import chunk_columns, weight_columns
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, core_share, largest_fold
from kernels.weight_layout import prepared_fp8

__all__ = ["linear_fp8", "linear_fp8_kernel", "linear_fp8_partial_kernel"]

_MAX_K = 32768
_TOKEN_ELEMENTS = 32768
_MAX_TOKENS = 512


def _multiply(x_hbm: Any, codes_hbm: Any, scale_hbm: Any, y_hbm: Any, fold: int) -> None:
    """Write this core's columns of y."""
    num_tokens = x_hbm.shape[0]
    num_k_tiles = codes_hbm.shape[0] // PARTITIONS
    first_block, num_blocks = core_share(codes_hbm.shape[1] // BLOCK)
    first_column, end_column = first_block * BLOCK, (first_block + num_blocks) * BLOCK
    chunk = chunk_columns(num_k_tiles)
    block_tokens = min(
        _MAX_TOKENS, max(1, _TOKEN_ELEMENTS // num_k_tiles // PARTITIONS) * PARTITIONS
    )
    for token in range(0, num_tokens, block_tokens):
        tokens = min(block_tokens, num_tokens - token)
        xt_sb = activations_by_channel(x_hbm, token, tokens, num_k_tiles, fold)
        for column in range(first_column, end_column, chunk):
            columns = min(chunk, end_column - column)
            weight_sb = weight_columns(codes_hbm, scale_hbm, column, columns)
            for row in range(0, tokens, PARTITIONS):
                rows = min(PARTITIONS, tokens - row)
                y_sb = nl.ndarray((rows, columns), dtype=y_hbm.dtype, buffer=nl.sbuf)
                for begin in range(0, columns, PSUM_BANK_FP32):
                    end = min(begin + PSUM_BANK_FP32, columns)
                    y_psum = nl.ndarray((rows, end - begin), dtype=nl.float32, buffer=nl.psum)
                    contract(xt_sb[:, :, row : row + rows, :], weight_sb[:, :, begin:end], y_psum)
                    nisa.tensor_copy(dst=y_sb[:, begin:end], src=y_psum, engine=nisa.engine.scalar)
                begin_row = token + row
                nisa.dma_copy(
                    dst=y_hbm[begin_row : begin_row + rows, column : column + columns], src=y_sb
                )


@nki.jit
def linear_fp8_kernel(x_hbm: Any, codes_hbm: Any, scale_hbm: Any, fold: int) -> Any:
    """x [T, K] bf16, prepared weight -> y [T, Np] bf16."""
    y_hbm = nl.ndarray(
        (x_hbm.shape[0], codes_hbm.shape[1]), dtype=nl.bfloat16, buffer=nl.shared_hbm
    )
    _multiply(x_hbm, codes_hbm, scale_hbm, y_hbm, fold)
    return y_hbm


@nki.jit
def linear_fp8_partial_kernel(x_hbm: Any, codes_hbm: Any, scale_hbm: Any, fold: int) -> Any:
    """x [T, K] bf16, prepared weight -> unrounded y [T, Np] fp32 (a part of a sharded K)."""
    y_hbm = nl.ndarray((x_hbm.shape[0], codes_hbm.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    _multiply(x_hbm, codes_hbm, scale_hbm, y_hbm, fold)
    return y_hbm


_KERNELS = {
    "activation": (linear_fp8_kernel, torch.bfloat16),
    "accumulate": (linear_fp8_partial_kernel, torch.float32),
}


def linear_fp8(
    x: torch.Tensor, weight: QuantisedWeight, output: str, *, numerics: Numerics
) -> torch.Tensor:
    """y [T, N] of x [T, K] bf16 and weight [N, K]; bf16, or fp32 where output is 'accumulate'.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype, K > 32768 or scale bytes.
        UsageError: shapes or layout that do not meet, another word for output.
    """
    op = "linear_fp8"
    require_trn2(op, numerics)
    require_dtype(op, "x", x, torch.bfloat16)
    if x.ndim != 2:
        refuse(op, f"x has shape {tuple(x.shape)}: it must be [T, K]")
    require_weight(op, weight, "fp8_block", x.shape[1])
    require_limit(op, "K", x.shape[1], _MAX_K)
    if output not in _KERNELS:
        refuse(op, f"output is {output!r}: choose 'activation' or 'accumulate'")
    kernel, dtype = _KERNELS[output]
    if x.shape[0] == 0 or weight.out_features == 0:
        return x.new_empty((x.shape[0], weight.out_features), dtype=dtype)
    prepared = prepared_fp8(weight)
    fold = largest_fold(x.shape[1], PARTITIONS // min(x.shape[0], PARTITIONS), PARTITIONS)
    y = launch(kernel, x, prepared.codes, prepared.scale, fold)
    return y[:, : prepared.out_features].contiguous()
