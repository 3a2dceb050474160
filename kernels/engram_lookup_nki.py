"""Engram table rows of the hashed n-grams, dequantised and laid side by side.

Dimensions:
    T tokens, any number; F rows a token; W channels a row, a multiple of 32, <= 8192;
    R table rows, < 2^31 (row ids are never narrowed to fp32).

Layouts: codes uint8 [R, W] holding nl.float8_e4m3 (max 240); scale uint8 [R, W/32] ue8m0, both
from weight_layout.py; row_ids int32 [T * F, 1]; e [T * F, W] bf16.
Accumulation: none; a code times a power of two is exact in bf16.
Expected error: none, values are compared bit for bit.

Tiling (LNC=2: each core takes half of the rows):
    for 128 rows: ids -> SBUF; swdge gathers codes and scale bytes (W and W/32 bytes a row)
        VectorE byte << 23, codes * scale (broadcast over 32) -> bf16 -> HBM

Refuses: numerics other than trn2's, tables not "fp8_row", scale bytes of NaN.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from kernels.contract import require, require_ids, require_limit, require_trn2, require_weight
from kernels.fp8_activation import BLOCK
from kernels.launch import launch, nisa, nki, nl
from kernels.power_of_two_scale import exponent_bytes, powers_of_two
from kernels.tiling import PARTITIONS, core_share
from kernels.weight_layout import prepared_fp8_rows

__all__ = ["engram_lookup", "engram_lookup_kernel"]

_MAX_WIDTH = 8192
_MAX_ROWS = (1 << 31) - 1


@nki.jit
def engram_lookup_kernel(codes_hbm: Any, scale_hbm: Any, ids_hbm: Any) -> Any:
    """codes [R, W], scale [R, W/32] uint8, ids [N, 1] int32 -> rows [N, W] bf16."""
    width = codes_hbm.shape[1]
    blocks = width // BLOCK
    num_rows = ids_hbm.shape[0]
    rows_hbm = nl.ndarray((num_rows, width), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    first_row, my_rows = core_share(num_rows)
    end_row = first_row + my_rows
    for row in range(first_row, end_row, PARTITIONS):
        rows = min(PARTITIONS, end_row - row)
        id_sb = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
        codes_sb = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
        byte_sb = nl.ndarray((rows, blocks), dtype=nl.uint8, buffer=nl.sbuf)
        row_sb = nl.ndarray((rows, width), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=id_sb, src=ids_hbm[row : row + rows, :])
        nisa.dma_copy(
            dst=codes_sb,
            src=codes_hbm.ap(
                pattern=[[width, rows], [1, width]], vector_offset=id_sb, indirect_dim=0
            ),
        )
        nisa.dma_copy(
            dst=byte_sb,
            src=scale_hbm.ap(
                pattern=[[blocks, rows], [1, blocks]], vector_offset=id_sb, indirect_dim=0
            ),
        )
        by_block = (rows, blocks, BLOCK)
        nisa.tensor_tensor(
            dst=row_sb.reshape(by_block),
            data1=codes_sb.view(nl.float8_e4m3).reshape(by_block),
            data2=powers_of_two(exponent_bytes(byte_sb)).expand_dim(2).broadcast(2, BLOCK),
            op=nl.multiply,
        )
        nisa.dma_copy(dst=rows_hbm[row : row + rows, :], src=row_sb)
    return rows_hbm


def engram_lookup(
    table: QuantisedWeight, row_ids: torch.Tensor, *, numerics: Numerics
) -> torch.Tensor:
    """e [T, F*W] bf16: rows row_ids [T, F] of the table [R, W], side by side.

    Raises:
        KernelError: UNSUPPORTED numerics, size or scale bytes.
        UsageError: an id outside the table, a table that is not "fp8_row".
    """
    op = "engram_lookup"
    require_trn2(op, numerics)
    require_weight(op, table, "fp8_row", int(table.codes.shape[-1]))
    num_rows, width = table.codes.shape
    require_limit(op, "W", width, _MAX_WIDTH)
    require_limit(op, "R", num_rows, _MAX_ROWS)
    require(row_ids.ndim == 2, op, "row_ids must be [T, F]")
    require_ids(op, "row_ids", row_ids, tuple(row_ids.shape))
    shape = (row_ids.shape[0], row_ids.shape[1] * width)
    if row_ids.numel() == 0:
        return torch.empty(shape, dtype=torch.bfloat16, device=row_ids.device)
    low, high = (int(bound) for bound in row_ids.aminmax())
    require(
        low >= 0 and high < num_rows,
        op,
        f"row_ids reach from {low} to {high}, the table has {num_rows} rows",
    )
    prepared = prepared_fp8_rows(table)
    ids = row_ids.to(torch.int32).reshape(-1, 1)
    return launch(engram_lookup_kernel, prepared.codes, prepared.scale, ids).reshape(shape)
