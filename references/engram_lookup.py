"""Engram table rows of the hashed n-grams (model.md §2.9).

Rows are decoded when they are asked for: the real tables hold 98 billion values each. On the 240
grid the rescaling rule of references.weight_forms applies per row and 32 channels.
"""

from __future__ import annotations

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from references.number_formats import decode_e4m3, decode_ue8m0
from references.operands import require, require_ids, require_shape, require_weight
from references.precision import activation_dtype
from references.values import has_values
from references.weight_forms import rescaled_to_240

__all__ = ["engram_lookup"]

_TILE = 32


def engram_lookup(
    table: QuantisedWeight, row_ids: torch.Tensor, *, numerics: Numerics
) -> torch.Tensor:
    """e [T, F*W]: the rows row_ids [T, F] of the table [rows, W], dequantised, side by side.

    Raises:
        UsageError: an id outside the table, a table that is not "fp8_row", wrong dtypes.
    """
    require_weight("engram_lookup", table, "fp8_row", int(table.codes.shape[-1]))
    require_ids("engram_lookup", "row_ids", row_ids, ndim=2)
    num_rows, width = table.codes.shape
    require_shape("engram_lookup", "scale", table.scale, (num_rows, width // _TILE))
    if row_ids.numel() and has_values(row_ids):
        low, high = (int(bound) for bound in torch.aminmax(row_ids))
        require(
            low >= 0 and high < num_rows,
            "engram_lookup",
            f"row_ids reach from {low} to {high}, the table has {num_rows} rows",
        )
    ids = row_ids.flatten()
    codes, scale = table.codes[ids], table.scale[ids]
    if numerics.fp8_max == 240:
        codes, scale = rescaled_to_240(codes, scale, table.layout)
    values = decode_e4m3(codes, torch.float32).reshape(-1, width // _TILE, _TILE)
    rows = values * decode_ue8m0(scale, torch.float32).unsqueeze(-1)
    return rows.reshape(row_ids.shape[0], row_ids.shape[1] * width).to(activation_dtype(numerics))
