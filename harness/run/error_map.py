"""Where in an output the errors lie: a coarse map, so that a tail, a tile or a head stands out."""

from __future__ import annotations

import math

import torch

from harness.core.results import ErrorMap

__all__ = ["error_map"]

MAX_ROWS, MAX_COLUMNS = 16, 32


def error_map(candidate: torch.Tensor, golden: torch.Tensor, *, exact: bool) -> ErrorMap | None:
    """The output as [leading axes, last axis], in at most 16 x 32 cells; None where it is empty.

    A cell is the share of its elements that differ (exact outputs), or its largest error over the
    largest of the output. An element that is finite on one side only counts as the largest.
    """
    if candidate.shape != golden.shape or not golden.numel():
        return None
    width = golden.shape[-1] if golden.dim() else 1
    error = _errors(candidate, golden, exact=exact).reshape(-1, width)
    rows, columns = min(MAX_ROWS, error.shape[0]), min(MAX_COLUMNS, width)
    cells = tuple(
        tuple(
            float(block.mean() if exact else block.max())
            for block in band.tensor_split(columns, dim=1)
        )
        for band in error.tensor_split(rows, dim=0)
    )
    return ErrorMap(tuple(error.shape), "share" if exact else "relative", cells)


def _errors(candidate: torch.Tensor, golden: torch.Tensor, *, exact: bool) -> torch.Tensor:
    if exact:
        return (candidate != golden.to(candidate.dtype)).double()
    wide, other = candidate.double(), golden.double()
    error = torch.where(wide == other, 0.0, (wide - other).abs())
    # Equal infinities and NaN on both sides are no error.
    error = torch.where(torch.isnan(wide) & torch.isnan(other), 0.0, error)
    known = error[torch.isfinite(error)]
    largest = float(known.max()) if known.numel() else 0.0
    if not math.isfinite(largest) or largest <= 0:
        return torch.where(torch.isfinite(error), 0.0, 1.0).double()
    return torch.nan_to_num(error / largest, nan=1.0, posinf=1.0)
