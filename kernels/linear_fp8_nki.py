"""Linear layer with a 32x32 block-scaled fp8 weight: y = q(x) times weight^T.

Dimensions:
    T tokens, any number; K input features, a multiple of 32, <= 32768; N output features, any.
    Kp = K padded to 128; Np = N padded to 32 (both in the prepared weight, weight_layout.py).

Layouts: x [T, K] bf16 row-major; weight codes uint8 [Kp, Np] holding nl.float8_e4m3 (max 240);
scale uint8 [Kp/32, Np/32] ue8m0; y [T, Np] bf16 ("activation") or fp32 ("accumulate").
Accumulation: fp32 in PSUM over all of K. Activations (per 32) and weights are dequantised to bf16
first, which is exact: 4 significant bits times a power of two.
Expected error: fp32 summation of exact products, plus one rounding for bf16 output.

Tiling (both cores at LNC=2: each takes half of the 32-column blocks of N):
    for <= 512 tokens at a time (fewer for large K: x^T stays in SBUF):
        quantise, dequantise and transpose the rows           (fp8_activation.py)
        for <= 512 columns at a time (more for small K, fewer for large):
            DMA codes [128, K/128, columns] and scale bytes, replicated 32 times down the partitions
            VectorE: scale byte << 23 is the fp32 scale; codes * scale -> bf16, one instruction
            for 128 tokens, for 512 columns: K/128 matmuls, tokens stationary, weights moving
            ScalarE: PSUM -> bf16 or fp32 -> HBM
Tokens are stationary also in decode: the bound there is VectorE's dequantisation, K * N / 128
cycles, and this order needs no transpose of the result.

Refuses: numerics other than trn2's, x that is not bf16, K > 32768, weights not "fp8_block", scale
bytes of NaN. Values of x must be finite.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from kernels.contract import refuse, require_dtype, require_limit, require_trn2, require_weight
from kernels.fp8_activation import BLOCK, activations_by_channel
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, core_share, largest_fold
from kernels.weight_layout import prepared_fp8

__all__ = ["linear_fp8", "linear_fp8_kernel", "linear_fp8_partial_kernel"]

_MAX_K = 32768
# bf16 and fp8 copies of a weight chunk: 3 bytes for each of these elements of a partition.
_CHUNK_ELEMENTS = 32768
_TOKEN_ELEMENTS = 32768
_MAX_TOKENS = 512
_EXPONENT_SHIFT = 23


def _weight_chunk(codes_hbm: Any, scale_hbm: Any, column: int, columns: int) -> Any:
    """Dequantised bf16 [128, K/128, columns] of weight columns; exact."""
    num_k_tiles = codes_hbm.shape[0] // PARTITIONS
    width = codes_hbm.shape[1]
    blocks = columns // BLOCK
    width_blocks = width // BLOCK
    codes_sb = nl.ndarray((PARTITIONS, num_k_tiles, columns), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=codes_sb,
        src=codes_hbm.ap(
            pattern=[[width, PARTITIONS], [width * PARTITIONS, num_k_tiles], [1, columns]],
            offset=column,
        ),
    )
    byte_sb = nl.ndarray((PARTITIONS, num_k_tiles, blocks), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=byte_sb,
        src=scale_hbm.ap(
            pattern=[
                [width_blocks, PARTITIONS // BLOCK],
                [0, BLOCK],
                [width_blocks * (PARTITIONS // BLOCK), num_k_tiles],
                [1, blocks],
            ],
            offset=column // BLOCK,
        ),
    )
    scale_sb = nl.ndarray((PARTITIONS, num_k_tiles, blocks), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=scale_sb, src=byte_sb)
    nisa.tensor_scalar(dst=scale_sb, data=scale_sb, op0=nl.left_shift, operand0=_EXPONENT_SHIFT)
    weight_sb = nl.ndarray((PARTITIONS, num_k_tiles, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    by_block = (PARTITIONS, num_k_tiles, blocks, BLOCK)
    nisa.tensor_tensor(
        dst=weight_sb.reshape(by_block),
        data1=codes_sb.view(nl.float8_e4m3).reshape(by_block),
        data2=scale_sb.view(nl.float32).expand_dim(3).broadcast(3, BLOCK),
        op=nl.multiply,
    )
    return weight_sb


def _multiply(x_hbm: Any, codes_hbm: Any, scale_hbm: Any, y_hbm: Any, fold: int) -> None:
    """Write this core's columns of y."""
    num_tokens = x_hbm.shape[0]
    num_k_tiles = codes_hbm.shape[0] // PARTITIONS
    first_block, num_blocks = core_share(codes_hbm.shape[1] // BLOCK)
    first_column, end_column = first_block * BLOCK, (first_block + num_blocks) * BLOCK
    chunk_columns = max(BLOCK, _CHUNK_ELEMENTS // num_k_tiles // BLOCK * BLOCK)
    if chunk_columns > PSUM_BANK_FP32:
        chunk_columns = min(4, chunk_columns // PSUM_BANK_FP32) * PSUM_BANK_FP32
    block_tokens = min(
        _MAX_TOKENS, max(1, _TOKEN_ELEMENTS // num_k_tiles // PARTITIONS) * PARTITIONS
    )
    for token in range(0, num_tokens, block_tokens):
        tokens = min(block_tokens, num_tokens - token)
        xt_sb = activations_by_channel(x_hbm, token, tokens, num_k_tiles, fold)
        for column in range(first_column, end_column, chunk_columns):
            columns = min(chunk_columns, end_column - column)
            weight_sb = _weight_chunk(codes_hbm, scale_hbm, column, columns)
            for row in range(0, tokens, PARTITIONS):
                rows = min(PARTITIONS, tokens - row)
                y_sb = nl.ndarray((rows, columns), dtype=y_hbm.dtype, buffer=nl.sbuf)
                for begin in range(0, columns, PSUM_BANK_FP32):
                    end = min(begin + PSUM_BANK_FP32, columns)
                    y_psum = nl.ndarray((rows, end - begin), dtype=nl.float32, buffer=nl.psum)
                    _contract(xt_sb[:, :, row : row + rows, :], weight_sb[:, :, begin:end], y_psum)
                    nisa.tensor_copy(dst=y_sb[:, begin:end], src=y_psum, engine=nisa.engine.scalar)
                begin_row = token + row
                nisa.dma_copy(
                    dst=y_hbm[begin_row : begin_row + rows, column : column + columns], src=y_sb
                )


def _contract(xt_sb: Any, weight_sb: Any, y_psum: Any) -> None:
    """y [rows, columns] = x^T [128, j, rows, f] against weight [128, (f j), columns]."""
    tiles_per_row, fold = xt_sb.shape[1], xt_sb.shape[3]
    for f in range(fold):
        for j in range(tiles_per_row):
            k_tile = f * tiles_per_row + j
            nisa.nc_matmul(
                dst=y_psum,
                stationary=xt_sb[:, j, :, f],
                moving=weight_sb[:, k_tile, :],
                accumulate=k_tile > 0,
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
