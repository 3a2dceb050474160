"""Engram gate: streams_j + g_j * value, g_j = sigmoid(copysign(sqrt(max(|dot_j|, 1e-6)), dot_j)),
dot_j = sum_c x_jc * q_jc * k_jc * key_jc * rms(x_j)^-1 * rms(key_j)^-1 * d^-1/2.

Dimensions:
    T tokens, any number; m streams, 1..8; d channels, any.

Layouts: streams, key, out [T, m, d], value [T, d] bf16 row-major; q_weight, k_weight [m, d] bf16
or fp32.
Accumulation: products and sums over d in fp32, one rounding of the output.
Expected error: fp32 summation over d, halved in relative terms by the square root and damped by
the sigmoid; one bf16 rounding.

Tiling (LNC=2: each core takes half of the tokens):
    fold = largest c with 64c | d and T * c <= 128: few tokens lie on c partitions each
    for 128 folded rows:
        for <= 2048 channels, for each stream: three partial sums (x w key, x^2, key^2)
        a ones-block matmul adds the partitions of a token and hands each the sums
        GpSimd rsqrt (accurate), ScalarE sqrt and sigmoid; the sign travels as a bit, so that -0
            stays negative
        for <= 2048 channels, for each stream: VectorE (value * g_j) + streams_j -> HBM
The weights' product is replicated over partitions by a stride-0 DMA.

Refuses: numerics other than trn2's, activations that are not bf16, m > 8.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.inverse_rms import inverse_rms
from kernels.launch import launch, nisa, nki, nl
from kernels.stream_tiles import (
    CHUNK_CHANNELS,
    MIN_FOLDED_CHANNELS,
    load_streams,
    streams_view,
)
from kernels.tile_masks import same_group_mask
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["engram_gate", "engram_gate_kernel"]

_MAX_STREAMS = 8
_SMALLEST_DOT = 1e-6
_SIGN_BIT = 0x80000000


def _replicated_weight(weight_hbm: Any, tokens: int, fold: int, column: int, columns: int) -> Any:
    """[tokens * fold, m, columns] of weight [m, d], the piece of each partition."""
    m, channels = weight_hbm.shape
    weight_sb = nl.ndarray((tokens * fold, m, columns), dtype=weight_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=weight_sb,
        src=weight_hbm.ap(
            pattern=[[0, tokens], [channels // fold, fold], [channels, m], [1, columns]],
            offset=column,
        ),
    )
    return weight_sb


def _partial_sums(x_sb: Any, key_sb: Any, q_sb: Any, k_sb: Any, sums_sb: Any, first: int) -> None:
    """Add this chunk's sums of x w key, x^2 and key^2 to sums [rows, 3, m]."""
    rows, m, columns = x_sb.shape
    product_sb = nl.ndarray((rows, m, columns), dtype=nl.float32, buffer=nl.sbuf)
    chunk_sb = nl.ndarray((rows, 3, m), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product_sb, data1=q_sb, data2=k_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=product_sb, data1=product_sb, data2=x_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=product_sb, data1=product_sb, data2=key_sb, op=nl.multiply)
    nisa.tensor_reduce(dst=chunk_sb[:, 0, :], op=nl.add, data=product_sb, axis=2)
    nisa.activation(dst=product_sb, op=nl.square, data=x_sb)
    nisa.tensor_reduce(dst=chunk_sb[:, 1, :], op=nl.add, data=product_sb, axis=2)
    nisa.activation(dst=product_sb, op=nl.square, data=key_sb)
    nisa.tensor_reduce(dst=chunk_sb[:, 2, :], op=nl.add, data=product_sb, axis=2)
    if first == 0:
        nisa.tensor_copy(dst=sums_sb, src=chunk_sb)
    else:
        nisa.tensor_tensor(dst=sums_sb, data1=sums_sb, data2=chunk_sb, op=nl.add)


def _gates(sums_sb: Any, channels: int, eps: float) -> Any:
    """fp32 [rows, m] of sums [rows, 3, m] over all channels."""
    rows, m = sums_sb.shape[0], sums_sb.shape[2]
    dot_sb = nl.ndarray((rows, m), dtype=nl.float32, buffer=nl.sbuf)
    size_sb = nl.ndarray((rows, m), dtype=nl.float32, buffer=nl.sbuf)
    sign_sb = nl.ndarray((rows, m), dtype=nl.uint32, buffer=nl.sbuf)
    rstd_sb = inverse_rms(sums_sb[:, 1:3, :], channels, eps)
    nisa.scalar_tensor_tensor(
        dst=dot_sb,
        data=sums_sb[:, 0, :],
        op0=nl.multiply,
        operand0=channels**-0.5,
        op1=nl.multiply,
        operand1=rstd_sb[:, 0, :],
    )
    nisa.tensor_tensor(dst=dot_sb, data1=dot_sb, data2=rstd_sb[:, 1, :], op=nl.multiply)
    nisa.tensor_scalar(
        dst=sign_sb, data=dot_sb.view(nl.uint32), op0=nl.bitwise_and, operand0=_SIGN_BIT
    )
    nisa.tensor_scalar(
        dst=size_sb,
        data=dot_sb,
        op0=nl.abs,
        operand0=0.0,
        op1=nl.maximum,
        operand1=_SMALLEST_DOT,
    )
    nisa.activation(dst=size_sb, op=nl.sqrt, data=size_sb)
    bits = size_sb.view(nl.uint32)
    nisa.tensor_tensor(dst=bits, data1=bits, data2=sign_sb, op=nl.bitwise_or)
    nisa.activation(dst=size_sb, op=nl.sigmoid, data=size_sb)
    return size_sb


@nki.jit
def engram_gate_kernel(
    streams_hbm: Any,
    key_hbm: Any,
    value_hbm: Any,
    q_hbm: Any,
    k_hbm: Any,
    eps: float,
    fold: int,
) -> Any:
    """streams, key [T, m, d], value [T, d] bf16, q, k [m, d] -> out [T, m, d] bf16."""
    num_tokens, m, channels = streams_hbm.shape
    width = channels // fold
    out_hbm = nl.ndarray((num_tokens, m, channels), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    value_rows = value_hbm.reshape((num_tokens * fold, width))
    chunk = CHUNK_CHANNELS // m
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    tile_tokens = PARTITIONS // fold
    group_sb = same_group_mask(min(tile_tokens, num_tokens), fold)
    for token in range(first_token, end_token, tile_tokens):
        tokens = min(tile_tokens, end_token - token)
        rows, row = tokens * fold, token * fold
        sums_sb = nl.ndarray((rows, 3, m), dtype=nl.float32, buffer=nl.sbuf)
        for column in range(0, width, chunk):
            columns = min(chunk, width - column)
            place = (token, tokens, column, columns)
            x_sb = load_streams(streams_hbm, fold, place)
            key_sb = load_streams(key_hbm, fold, place)
            q_sb = _replicated_weight(q_hbm, tokens, fold, column, columns)
            k_sb = _replicated_weight(k_hbm, tokens, fold, column, columns)
            _partial_sums(x_sb, key_sb, q_sb, k_sb, sums_sb, column)
        if fold > 1:
            sums_psum = nl.ndarray((rows, 3, m), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=sums_psum, stationary=group_sb[0:rows, 0:rows], moving=sums_sb, accumulate=False
            )
            nisa.tensor_copy(dst=sums_sb, src=sums_psum)
        gate_sb = _gates(sums_sb, channels, eps)
        for column in range(0, width, chunk):
            columns = min(chunk, width - column)
            place = (token, tokens, column, columns)
            x_sb = load_streams(streams_hbm, fold, place)
            value_sb = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=value_sb, src=value_rows[row : row + rows, column : column + columns])
            for j in range(m):
                nisa.scalar_tensor_tensor(
                    dst=x_sb[:, j, :],
                    data=value_sb,
                    op0=nl.multiply,
                    operand0=gate_sb[:, j : j + 1],
                    op1=nl.add,
                    operand1=x_sb[:, j, :],
                )
            nisa.dma_copy(dst=streams_view(out_hbm, fold, place), src=x_sb)
    return out_hbm


def engram_gate(
    streams: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """out [T, m, d] bf16 of streams, key [T, m, d], value [T, d] bf16, weights [m, d].

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or m > 8.
        UsageError: shapes that do not meet.
    """
    op = "engram_gate"
    require_trn2(op, numerics)
    require(streams.ndim == 3, op, "streams must be [T, m, d]")
    num_tokens, m, channels = streams.shape
    for name, tensor, shape in (
        ("streams", streams, (num_tokens, m, channels)),
        ("key", key, (num_tokens, m, channels)),
        ("value", value, (num_tokens, channels)),
    ):
        require_dtype(op, name, tensor, torch.bfloat16)
        require_shape(op, name, tensor, shape)
    for name, tensor in (("q_weight", q_weight), ("k_weight", k_weight)):
        require_dtype(op, name, tensor, torch.bfloat16, torch.float32)
        require_shape(op, name, tensor, (m, channels))
    require_limit(op, "m", m, _MAX_STREAMS)
    if streams.numel() == 0:
        return streams.new_empty(streams.shape)
    fold = largest_fold(channels, PARTITIONS // min(num_tokens, PARTITIONS), MIN_FOLDED_CHANNELS)
    return launch(engram_gate_kernel, streams, key, value, q_weight, k_weight, float(eps), fold)
