"""Kernels that compute nothing: what a launch and a DMA descriptor row cost (`microbench`)."""

from __future__ import annotations

from typing import Any

import torch

from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, core_share

__all__ = ["copy_kernel", "row_copy", "row_copy_input"]

_TILE_BYTES = 8192  # of one partition, so that rows of every size up to it fit one tile


@nki.jit
def copy_kernel(x_hbm: Any, row: int) -> Any:
    """x [P, W] fp32 -> the same; every partition's W values travel in rows of `row` values.

    P at most 128, W at most 2048, `row` divides W. Both directions use the same rows, so the
    cost is that of 2 * P * W / row descriptors. Two cores share the partitions.
    """
    partitions, width = x_hbm.shape
    y_hbm = nl.ndarray((partitions, width), dtype=x_hbm.dtype, buffer=nl.shared_hbm)
    first, mine = core_share(partitions)
    x_sb = nl.ndarray((mine, width), dtype=x_hbm.dtype, buffer=nl.sbuf)
    for at in range(0, width, row):
        source = x_hbm[first : first + mine, at : at + row]
        nisa.dma_copy(dst=x_sb[:, at : at + row], src=source)
    for at in range(0, width, row):
        target = y_hbm[first : first + mine, at : at + row]
        nisa.dma_copy(dst=target, src=x_sb[:, at : at + row])
    return y_hbm


def row_copy_input(num_bytes: int) -> torch.Tensor:
    """x for `row_copy`: num_bytes (a multiple of 512) spread over the partitions."""
    width = max(1, num_bytes // (4 * PARTITIONS))
    if 4 * width > _TILE_BYTES:
        raise ValueError(f"{num_bytes} bytes are more than one tile of {_TILE_BYTES * PARTITIONS}")
    return torch.arange(PARTITIONS * width, dtype=torch.float32).view(PARTITIONS, width)


def row_copy(x: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """x through SBUF and back, in rows of `row_bytes`."""
    return launch(copy_kernel, x, row_bytes // 4)
