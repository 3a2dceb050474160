"""Clamped SwiGLU: y = route_weight * silu(min(gate, limit)) * clamp(up, -limit, limit).

Dimensions:
    T tokens, any number; I expert width, any; a tile holds at most 2048 channels of a row.

Layouts: gate, up, y [T, I] bf16 row-major; route_weight [T] fp32, or absent.
Accumulation: fp32 throughout, one rounding to bf16. The routing weight multiplies here, before w2.
Expected error: within the fp32 baseline, where the sigmoid is exact to an fp32 ulp or two.

Tiling (LNC=2: each core takes half of the rows):
    fold = largest c with 64c | I and T * c <= 128: with few tokens a row lies on c partitions
    for 128 folded rows at a time, for <= 2048 channels at a time:
        VectorE: g = min(gate, limit); u = min(max(up, -limit), limit)
        ScalarE: s = sigmoid(g)                      (silu itself is a coarser approximation)
        VectorE: h = g * s; y = (h * route) * u, or h * u
The two kernels share all but the last instruction; a stride-0 DMA replicates a token's routing
weight over its partitions.

Refuses: numerics other than trn2's, inputs that are not bf16, a limit that is not positive.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_shape, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["routed_swiglu_kernel", "swiglu", "swiglu_kernel"]

_TILE_CHANNELS = 2048
_MIN_FOLDED_CHANNELS = 64


def _gated_tile(gate_rows: Any, up_rows: Any, rows: Any, columns: Any, limit: float) -> Any:
    """(g * sigmoid(g), clamped up) of one tile, both fp32 in SBUF."""
    num_rows, num_columns = rows[1], columns[1]
    row_end = rows[0] + num_rows
    column_end = columns[0] + num_columns
    gate_sb = nl.ndarray((num_rows, num_columns), dtype=gate_rows.dtype, buffer=nl.sbuf)
    up_sb = nl.ndarray((num_rows, num_columns), dtype=up_rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=gate_sb, src=gate_rows[rows[0] : row_end, columns[0] : column_end])
    nisa.dma_copy(dst=up_sb, src=up_rows[rows[0] : row_end, columns[0] : column_end])
    clamped_gate_sb = nl.ndarray((num_rows, num_columns), dtype=nl.float32, buffer=nl.sbuf)
    sigmoid_sb = nl.ndarray((num_rows, num_columns), dtype=nl.float32, buffer=nl.sbuf)
    clamped_up_sb = nl.ndarray((num_rows, num_columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=clamped_gate_sb, data=gate_sb, op0=nl.minimum, operand0=limit)
    nisa.tensor_scalar(
        dst=clamped_up_sb,
        data=up_sb,
        op0=nl.maximum,
        operand0=-limit,
        op1=nl.minimum,
        operand1=limit,
    )
    nisa.activation(dst=sigmoid_sb, op=nl.sigmoid, data=clamped_gate_sb)
    nisa.tensor_tensor(dst=sigmoid_sb, data1=clamped_gate_sb, data2=sigmoid_sb, op=nl.multiply)
    return sigmoid_sb, clamped_up_sb


@nki.jit
def swiglu_kernel(gate_hbm: Any, up_hbm: Any, limit: float, fold: int) -> Any:
    """gate, up [T, I] bf16 -> y [T, I] bf16."""
    num_tokens, width = gate_hbm.shape
    y_hbm = nl.ndarray((num_tokens, width), dtype=gate_hbm.dtype, buffer=nl.shared_hbm)
    shape = (num_tokens * fold, width // fold)
    gate_rows, up_rows, y_rows = (
        gate_hbm.reshape(shape),
        up_hbm.reshape(shape),
        y_hbm.reshape(shape),
    )
    first_row, my_rows = core_share(shape[0])
    end_row = first_row + my_rows
    for row in range(first_row, end_row, PARTITIONS):
        num_rows = min(PARTITIONS, end_row - row)
        for column in range(0, shape[1], _TILE_CHANNELS):
            num_columns = min(_TILE_CHANNELS, shape[1] - column)
            gated_sb, up_sb = _gated_tile(
                gate_rows, up_rows, (row, num_rows), (column, num_columns), limit
            )
            y_sb = nl.ndarray((num_rows, num_columns), dtype=gate_hbm.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=y_sb, data1=gated_sb, data2=up_sb, op=nl.multiply)
            nisa.dma_copy(dst=y_rows[row : row + num_rows, column : column + num_columns], src=y_sb)
    return y_hbm


@nki.jit
def routed_swiglu_kernel(
    gate_hbm: Any, up_hbm: Any, route_hbm: Any, limit: float, fold: int
) -> Any:
    """gate, up [T, I] bf16, route [T, 1] fp32 -> y [T, I] bf16."""
    num_tokens, width = gate_hbm.shape
    y_hbm = nl.ndarray((num_tokens, width), dtype=gate_hbm.dtype, buffer=nl.shared_hbm)
    shape = (num_tokens * fold, width // fold)
    gate_rows, up_rows, y_rows = (
        gate_hbm.reshape(shape),
        up_hbm.reshape(shape),
        y_hbm.reshape(shape),
    )
    tile_tokens = PARTITIONS // fold
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for token in range(first_token, end_token, tile_tokens):
        tokens = min(tile_tokens, end_token - token)
        row, num_rows = token * fold, tokens * fold
        route_sb = nl.ndarray((num_rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(
            dst=route_sb, src=route_hbm.ap(pattern=[[1, tokens], [0, fold], [1, 1]], offset=token)
        )
        for column in range(0, shape[1], _TILE_CHANNELS):
            num_columns = min(_TILE_CHANNELS, shape[1] - column)
            gated_sb, up_sb = _gated_tile(
                gate_rows, up_rows, (row, num_rows), (column, num_columns), limit
            )
            y_sb = nl.ndarray((num_rows, num_columns), dtype=gate_hbm.dtype, buffer=nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=y_sb,
                data=gated_sb,
                op0=nl.multiply,
                operand0=route_sb,
                op1=nl.multiply,
                operand1=up_sb,
            )
            nisa.dma_copy(dst=y_rows[row : row + num_rows, column : column + num_columns], src=y_sb)
    return y_hbm


def swiglu(
    gate: torch.Tensor,
    up: torch.Tensor,
    limit: float,
    route_weight: torch.Tensor | None,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """y [T, I] bf16 of gate, up [T, I] bf16 and route_weight [T] fp32 or None.

    Raises:
        KernelError: UNSUPPORTED numerics or dtype.
        UsageError: shapes that differ, a limit that is not positive.
    """
    require_trn2("swiglu", numerics)
    require_dtype("swiglu", "gate", gate, torch.bfloat16)
    require_dtype("swiglu", "up", up, torch.bfloat16)
    require_shape("swiglu", "up", up, tuple(gate.shape))
    require(gate.ndim == 2, "swiglu", f"gate has shape {tuple(gate.shape)}: it must be [T, I]")
    require(limit > 0, "swiglu", f"limit is {limit}: it must be positive")
    num_tokens, width = gate.shape
    if route_weight is not None:
        require_shape("swiglu", "route_weight", route_weight, (num_tokens,))
        require_dtype("swiglu", "route_weight", route_weight, torch.float32)
    if gate.numel() == 0:
        return gate.new_empty(gate.shape)
    fold = largest_fold(width, PARTITIONS // min(num_tokens, PARTITIONS), _MIN_FOLDED_CHANNELS)
    if route_weight is None:
        return launch(swiglu_kernel, gate, up, float(limit), fold)
    return launch(routed_swiglu_kernel, gate, up, route_weight.unsqueeze(1), float(limit), fold)
