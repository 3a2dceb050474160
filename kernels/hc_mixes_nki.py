"""mHC coefficients: pre, post and the Sinkhorn-normalised comb of each token's streams.

Dimensions:
    T tokens, any number; m streams, 1..8; d channels, m * d <= 32768; (2 + m) m coefficients.

Layouts: streams [T, m, d] bf16 row-major; fn [Kp, (2+m)m] fp32, K = m * d padded to 128
(plain_weight.py); base, scale fp32; pre, post [T, m], comb [T, m, m] (source, destination) fp32.
Accumulation: fp32 throughout: the product with fn in PSUM (fp32 operands), mean square of all
m * d values, sigmoid, softmax and 2 * iterations - 1 further normalisations.
Expected error: fp32 summation over m * d, and an fp32 ulp a normalisation step (they contract).

Tiling (LNC=2: each core takes half of the tokens):
    fn -> SBUF once [128, Kp/128, (2+m)m]
    for 128 tokens at a time:
        x -> PE transpose -> Kp/128 fp32 matmuls -> z [tokens, (2+m)m]
        ScalarE square with fused sum over each partition's channels; a 0/1 matmul adds the
            partitions of a token (channel_tiles.py folds a row over several)
        z * rstd * scale + base; sigmoids; row softmax
        comb lies in a [m+1, m+1] tile a token whose last row and column hold hc_eps: one VectorE
            reduction gives sum + eps, then reciprocal and multiply: 3 instructions a step
    Unrolled at trace time, 6 small VectorE instructions an iteration.

Refuses: numerics other than trn2's, streams that are not bf16, fn, base or scale that are not
fp32, m > 8, m * d > 32768.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.channel_tiles import contract, load_rows, transpose_rows
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.inverse_rms import inverse_rms
from kernels.launch import launch_many, nisa, nki, nl
from kernels.plain_weight import channel_major
from kernels.tile_masks import owner_mask
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["hc_mixes", "hc_mixes_kernel"]

_MAX_STREAMS = 8
_MAX_K = 32768
_CHUNK_CHANNELS = 4096


def _products(x_rows: Any, fn_sb: Any, token: int, tokens: int, fold: int) -> Any:
    """(PSUM [tokens, (2+m)m] = fn . x, PSUM [tokens, 1] = sum of squares), both fp32."""
    rows = tokens * fold
    num_k_tiles, coefficients = fn_sb.shape[1], fn_sb.shape[2]
    width = num_k_tiles // fold * PARTITIONS
    xt_sb = nl.ndarray(
        (PARTITIONS, num_k_tiles // fold, tokens, fold), dtype=nl.float32, buffer=nl.sbuf
    )
    chunks = (width + _CHUNK_CHANNELS - 1) // _CHUNK_CHANNELS
    square_sb = nl.ndarray((rows, chunks), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(chunks):
        channel = i * _CHUNK_CHANNELS
        chunk = min(_CHUNK_CHANNELS, width - channel)
        x_sb = load_rows(x_rows, token * fold, rows, channel, chunk)
        scratch_sb = nl.ndarray((rows, chunk), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=scratch_sb,
            op=nl.square,
            data=x_sb,
            reduce_op=nl.add,
            reduce_res=square_sb[:, i : i + 1],
        )
        transpose_rows(x_sb, xt_sb, channel // PARTITIONS, 0, fold)
    z_psum = nl.ndarray((tokens, coefficients), dtype=nl.float32, buffer=nl.psum)
    contract(xt_sb, fn_sb, z_psum)
    owner_sb = owner_mask(tokens, fold)
    total_psum = nl.ndarray((tokens, 1), dtype=nl.float32, buffer=nl.psum)
    for i in range(chunks):
        nisa.nc_matmul(
            dst=total_psum,
            stationary=owner_sb,
            moving=square_sb[:, i : i + 1],
            accumulate=i > 0,
        )
    return z_psum, total_psum


def _coefficients(z_psum: Any, total_psum: Any, affine_sb: Any, channels: int, eps: float) -> Any:
    """fp32 [tokens, (2+m)m]: z * rsqrt(mean square + eps) * scale + base."""
    tokens, count = z_psum.shape
    z_sb = nl.ndarray((tokens, count), dtype=nl.float32, buffer=nl.sbuf)
    rstd_sb = inverse_rms(total_psum, channels, eps)
    nisa.scalar_tensor_tensor(
        dst=z_sb,
        data=z_psum,
        op0=nl.multiply,
        operand0=rstd_sb,
        op1=nl.multiply,
        operand1=affine_sb[0:tokens, 0, :],
    )
    nisa.tensor_tensor(dst=z_sb, data1=z_sb, data2=affine_sb[0:tokens, 1, :], op=nl.add)
    return z_sb


def _row_softmax(logits: Any, comb_sb: Any, eps: float) -> None:
    """comb[:, 0:m, 0:m] = softmax of logits [tokens, m, m] over the last axis, + eps."""
    tokens, m = logits.shape[0], logits.shape[1]
    shifted_sb = nl.ndarray((tokens, m, m), dtype=nl.float32, buffer=nl.sbuf)
    row_sb = nl.ndarray((tokens, m), dtype=nl.float32, buffer=nl.sbuf)
    per_row = row_sb.expand_dim(2).broadcast(2, m)
    nisa.tensor_reduce(dst=row_sb, op=nl.maximum, data=logits, axis=2)
    nisa.tensor_tensor(dst=shifted_sb, data1=logits, data2=per_row, op=nl.subtract)
    nisa.activation(dst=shifted_sb, op=nl.exp, data=shifted_sb)
    nisa.tensor_reduce(dst=row_sb, op=nl.add, data=shifted_sb, axis=2)
    nisa.reciprocal(dst=row_sb, data=row_sb)
    nisa.tensor_tensor(dst=shifted_sb, data1=shifted_sb, data2=per_row, op=nl.multiply)
    nisa.tensor_scalar(dst=comb_sb[:, 0:m, 0:m], data=shifted_sb, op0=nl.add, operand0=eps)


def _normalise(source_first: Any, m: int) -> None:
    """Divide rows [tokens, i, 0:m] of a [tokens, m+1, m+1] view by their sum plus eps."""
    tokens = source_first.shape[0]
    sum_sb = nl.ndarray((tokens, m), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sum_sb, op=nl.add, data=source_first[:, 0:m, :], axis=2)
    nisa.reciprocal(dst=sum_sb, data=sum_sb)
    inner = source_first[:, 0:m, 0:m]
    nisa.tensor_tensor(
        dst=inner, data1=inner, data2=sum_sb.expand_dim(2).broadcast(2, m), op=nl.multiply
    )


@nki.jit
def hc_mixes_kernel(
    streams_hbm: Any,
    fn_hbm: Any,
    affine_hbm: Any,
    norm_eps: float,
    hc_eps: float,
    iterations: int,
    fold: int,
) -> Any:
    """streams [T, m, d] bf16, fn [Kp, (2+m)m], affine [2, (2+m)m] fp32 -> pre, post, comb."""
    num_tokens, m, width = streams_hbm.shape
    channels = m * width
    coefficients = fn_hbm.shape[1]
    num_k_tiles = fn_hbm.shape[0] // PARTITIONS
    pre_hbm = nl.ndarray((num_tokens, m), dtype=nl.float32, buffer=nl.shared_hbm)
    post_hbm = nl.ndarray((num_tokens, m), dtype=nl.float32, buffer=nl.shared_hbm)
    comb_hbm = nl.ndarray((num_tokens, m, m), dtype=nl.float32, buffer=nl.shared_hbm)
    x_rows = streams_hbm.reshape((num_tokens * fold, channels // fold))
    tile_tokens = PARTITIONS // fold
    fn_sb = nl.ndarray((PARTITIONS, num_k_tiles, coefficients), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=fn_sb,
        src=fn_hbm.ap(
            pattern=[
                [coefficients, PARTITIONS],
                [coefficients * PARTITIONS, num_k_tiles],
                [1, coefficients],
            ]
        ),
    )
    affine_sb = nl.ndarray((tile_tokens, 2, coefficients), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=affine_sb,
        src=affine_hbm.ap(pattern=[[0, tile_tokens], [coefficients, 2], [1, coefficients]]),
    )
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for token in range(first_token, end_token, tile_tokens):
        tokens = min(tile_tokens, end_token - token)
        z_psum, total_psum = _products(x_rows, fn_sb, token, tokens, fold)
        z_sb = _coefficients(z_psum, total_psum, affine_sb, channels, norm_eps)
        gate_sb = nl.ndarray((tokens, 2, m), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=gate_sb.reshape((tokens, 2 * m)), op=nl.sigmoid, data=z_sb[:, 0 : 2 * m]
        )
        nisa.tensor_scalar(dst=gate_sb[:, 0, :], data=gate_sb[:, 0, :], op0=nl.add, operand0=hc_eps)
        nisa.tensor_scalar(
            dst=gate_sb[:, 1, :], data=gate_sb[:, 1, :], op0=nl.multiply, operand0=2.0
        )
        comb_sb = nl.ndarray((tokens, m + 1, m + 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=comb_sb, value=hc_eps)
        _row_softmax(z_sb[:, 2 * m : coefficients].reshape_dim(1, (m, m)), comb_sb, hc_eps)
        by_column = comb_sb.permute((0, 2, 1))
        _normalise(by_column, m)
        for _ in range(iterations - 1):
            _normalise(comb_sb, m)
            _normalise(by_column, m)
        end = token + tokens
        nisa.dma_copy(dst=pre_hbm[token:end, :], src=gate_sb[:, 0, :])
        nisa.dma_copy(dst=post_hbm[token:end, :], src=gate_sb[:, 1, :])
        nisa.dma_copy(dst=comb_hbm[token:end, :, :], src=comb_sb[:, 0:m, 0:m])
    return pre_hbm, post_hbm, comb_hbm


def hc_mixes(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_eps: float,
    hc_eps: float,
    iterations: int,
    *,
    numerics: Numerics,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pre [T, m], post [T, m], comb [T, m, m] fp32 of streams [T, m, d] bf16.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or size.
        UsageError: shapes that do not meet, iterations below 1.
    """
    op = "hc_mixes"
    require_trn2(op, numerics)
    require_dtype(op, "streams", streams, torch.bfloat16)
    require(streams.ndim == 3, op, "streams must be [T, m, d]")
    num_tokens, m, width = streams.shape
    count = (2 + m) * m
    for name, tensor, shape in (
        ("fn", fn, (count, m * width)),
        ("base", base, (count,)),
        ("scale", scale, (3,)),
    ):
        require_dtype(op, name, tensor, torch.float32)
        require_shape(op, name, tensor, shape)
    require(iterations >= 1, op, f"iterations is {iterations}: it must be at least 1")
    require_limit(op, "m", m, _MAX_STREAMS)
    require_limit(op, "m * d", m * width, _MAX_K)
    if num_tokens == 0:
        empty = streams.new_empty((0, m), dtype=torch.float32)
        return empty, empty.clone(), streams.new_empty((0, m, m), dtype=torch.float32)
    repeats = torch.tensor([m, m, m * m]).to(scale.device)
    affine = torch.stack((scale.repeat_interleave(repeats), base))
    fold = largest_fold(m * width, PARTITIONS // min(num_tokens, PARTITIONS), PARTITIONS)
    pre, post, comb = launch_many(
        hc_mixes_kernel,
        streams,
        channel_major(fn),
        affine,
        float(norm_eps),
        float(hc_eps),
        iterations,
        fold,
    )
    return pre, post, comb
