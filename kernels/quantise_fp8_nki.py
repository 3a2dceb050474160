"""Activation and window-KV quantiser: e4m3 codes up to 240 with a ue8m0 scale per 32 channels.

Dimensions:
    T rows, any number; K channels, a multiple of 32.

Layouts: x, y [T, K] bf16 row-major; codes uint8 [T, K] holding nl.float8_e4m3; scale uint8
[T, K/32] ue8m0 (byte 127 is 1).
Accumulation: none; exact by construction. The scale is pow2ceil(fl32(max(amax, 1e-4) *
fl32(1/240))) by its bits, codes round to nearest even, model.md §2.1 with 240 in place of 448.
Expected error: none, codes, scales and dequantised values are compared bit for bit.

Tiling (LNC=2: each core takes half of the rows):
    fold = largest c with 32c | K and T * c <= 128: few rows lie on c partitions each
    for 128 folded rows, for <= 4096 channels:
        quantise: VectorE |x|, block maxima, exponents, x * 2^-e -> fp8        (fp8_activation.py)
        dequantise: VectorE byte << 23, codes * scale -> bf16

Refuses: numerics other than trn2's, x that is not bf16, scale bytes 0 and 255 (2^-127 is no
normal fp32, 255 is NaN); codes above 240 have no value on this grid. Values of x must be finite.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.errors import KernelError
from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_shape, require_trn2
from kernels.fp8_activation import BLOCK, block_codes, block_exponents
from kernels.launch import launch, launch_many, nisa, nki, nl
from kernels.power_of_two_scale import exponent_bytes, powers_of_two
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["dequantise_fp8", "dequantise_fp8_kernel", "quantise_fp8", "quantise_fp8_kernel"]

_CHUNK_CHANNELS = 4096


@nki.jit
def quantise_fp8_kernel(x_hbm: Any, fold: int) -> Any:
    """x [T, K] bf16 -> codes uint8 [T, K], scale uint8 [T, K/32]."""
    num_rows, channels = x_hbm.shape
    width = channels // fold
    codes_hbm = nl.ndarray((num_rows, channels), dtype=nl.uint8, buffer=nl.shared_hbm)
    scale_hbm = nl.ndarray((num_rows, channels // BLOCK), dtype=nl.uint8, buffer=nl.shared_hbm)
    x_rows = x_hbm.reshape((num_rows * fold, width))
    codes_rows = codes_hbm.reshape((num_rows * fold, width))
    scale_rows = scale_hbm.reshape((num_rows * fold, width // BLOCK))
    first_row, my_rows = core_share(num_rows * fold)
    end_row = first_row + my_rows
    for row in range(first_row, end_row, PARTITIONS):
        rows = min(PARTITIONS, end_row - row)
        for column in range(0, width, _CHUNK_CHANNELS):
            columns = min(_CHUNK_CHANNELS, width - column)
            blocks = columns // BLOCK
            x_sb = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=x_sb, src=x_rows[row : row + rows, column : column + columns])
            exponents_sb = block_exponents(x_sb)
            factors = powers_of_two(exponents_sb)
            codes_sb = block_codes(x_sb, factors[:, 1, :])
            byte_sb = nl.ndarray((rows, blocks), dtype=nl.uint8, buffer=nl.sbuf)
            nisa.tensor_copy(dst=byte_sb, src=exponents_sb[:, 0, :])
            nisa.dma_copy(
                dst=codes_rows[row : row + rows, column : column + columns],
                src=codes_sb.view(nl.uint8).reshape((rows, columns)),
            )
            block = column // BLOCK
            nisa.dma_copy(dst=scale_rows[row : row + rows, block : block + blocks], src=byte_sb)
    return codes_hbm, scale_hbm


@nki.jit
def dequantise_fp8_kernel(codes_hbm: Any, scale_hbm: Any, fold: int) -> Any:
    """codes uint8 [T, K], scale uint8 [T, K/32] -> y [T, K] bf16."""
    num_rows, channels = codes_hbm.shape
    width = channels // fold
    y_hbm = nl.ndarray((num_rows, channels), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    codes_rows = codes_hbm.reshape((num_rows * fold, width))
    scale_rows = scale_hbm.reshape((num_rows * fold, width // BLOCK))
    y_rows = y_hbm.reshape((num_rows * fold, width))
    first_row, my_rows = core_share(num_rows * fold)
    end_row = first_row + my_rows
    for row in range(first_row, end_row, PARTITIONS):
        rows = min(PARTITIONS, end_row - row)
        for column in range(0, width, _CHUNK_CHANNELS):
            columns = min(_CHUNK_CHANNELS, width - column)
            blocks, block = columns // BLOCK, column // BLOCK
            by_block = (rows, blocks, BLOCK)
            codes_sb = nl.ndarray((rows, columns), dtype=nl.uint8, buffer=nl.sbuf)
            byte_sb = nl.ndarray((rows, blocks), dtype=nl.uint8, buffer=nl.sbuf)
            y_sb = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=codes_sb, src=codes_rows[row : row + rows, column : column + columns])
            nisa.dma_copy(dst=byte_sb, src=scale_rows[row : row + rows, block : block + blocks])
            scale_sb = powers_of_two(exponent_bytes(byte_sb))
            nisa.tensor_tensor(
                dst=y_sb.reshape(by_block),
                data1=codes_sb.view(nl.float8_e4m3).reshape(by_block),
                data2=scale_sb.expand_dim(2).broadcast(2, BLOCK),
                op=nl.multiply,
            )
            nisa.dma_copy(dst=y_rows[row : row + rows, column : column + columns], src=y_sb)
    return y_hbm


def quantise_fp8(x: torch.Tensor, *, numerics: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
    """codes uint8 [..., K] and scale uint8 [..., K/32] of x [..., K] bf16.

    Raises:
        KernelError: UNSUPPORTED numerics or dtype.
        UsageError: K no multiple of 32.
    """
    op = "quantise_fp8"
    require_trn2(op, numerics)
    require_dtype(op, "x", x, torch.bfloat16)
    channels = x.shape[-1]
    require(channels % BLOCK == 0, op, f"K is {channels}: it must be a multiple of 32")
    scale_shape = (*x.shape[:-1], channels // BLOCK)
    if x.numel() == 0:
        return x.new_empty(x.shape, dtype=torch.uint8), x.new_empty(scale_shape, dtype=torch.uint8)
    rows = x.reshape(-1, channels)
    codes, scale = launch_many(quantise_fp8_kernel, rows, _fold(rows.shape[0], channels))
    return codes.reshape(x.shape), scale.reshape(scale_shape)


def dequantise_fp8(codes: torch.Tensor, scale: torch.Tensor, *, numerics: Numerics) -> torch.Tensor:
    """y [..., K] bf16 of codes uint8 [..., K] and scale uint8 [..., K/32].

    Raises:
        KernelError: UNSUPPORTED numerics or scale bytes.
        UsageError: not bytes, or shapes that do not meet.
    """
    op = "dequantise_fp8"
    require_trn2(op, numerics)
    require_dtype(op, "codes", codes, torch.uint8)
    require_dtype(op, "scale", scale, torch.uint8)
    channels = codes.shape[-1]
    require(channels % BLOCK == 0, op, f"K is {channels}: it must be a multiple of 32")
    require_shape(op, "scale", scale, (*codes.shape[:-1], channels // BLOCK))
    if codes.numel() == 0:
        return codes.new_empty(codes.shape, dtype=torch.bfloat16)
    require_normal_scales(op, scale)
    rows = codes.reshape(-1, channels)
    y = launch(
        dequantise_fp8_kernel,
        rows,
        scale.reshape(-1, channels // BLOCK),
        _fold(rows.shape[0], channels),
    )
    return y.reshape(codes.shape)


def require_normal_scales(op: str, scale: torch.Tensor) -> None:
    """Bytes 1..254.

    Raises:
        KernelError: UNSUPPORTED otherwise.
    """
    low, high = (int(bound) for bound in scale.aminmax())
    if low < 1 or high > 254:
        raise KernelError(
            "UNSUPPORTED", f"{op}: scale bytes reach from {low} to {high}, kernels take 1..254"
        )


def _fold(num_rows: int, channels: int) -> int:
    return largest_fold(channels, PARTITIONS // min(num_rows, PARTITIONS), BLOCK)
