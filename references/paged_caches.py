"""Packed cache pages (model.md §3.2): planar, all data rows of a page, then all scale rows.

A cache is uint8 [pages, page_size, 1, bytes an entry]; a page's bytes are contiguous, pages may
lie further apart (they are padded to a multiple of 512 bytes where a kernel asks for it).

    V41       528   512 e4m3 + 16 ue8m0 (32 channels each)       window KV
    V41_FP4   288   256 packed e2m1 + 32 e4m3 (16 channels each)  compressed KV
    index fp4  68   64 packed e2m1 + 4 ue8m0                      index keys
    index fp8 132   128 e4m3 + one float32                        index keys, fp8 variant

The same layouts serve other head dims D: D + D/32, D/2 + D/16, D/2 + D/32, D + 4.
"""

from __future__ import annotations

import torch

from references.number_formats import decode_e2m1, decode_e4m3, decode_ue8m0
from references.operands import refuse, require, require_codes

__all__ = ["LAYOUTS", "entry_bytes", "page_planes", "page_values", "pages_of"]

LAYOUTS = ("kv_fp8", "kv_fp4", "index_fp4", "index_fp8")


def entry_bytes(layout: str, head_dim: int) -> tuple[int, int]:
    """Data and scale bytes of one entry."""
    sizes = {
        "kv_fp8": (head_dim, head_dim // 32),
        "kv_fp4": (head_dim // 2, head_dim // 16),
        "index_fp4": (head_dim // 2, head_dim // 32),
        "index_fp8": (head_dim, 4),
    }
    if layout not in sizes:
        refuse("paged cache", f"layout is {layout!r}: choose one of {', '.join(LAYOUTS)}")
    return sizes[layout]


def page_planes(
    cache: torch.Tensor, layout: str, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Data [pages, page_size, .] and scales [pages, page_size, .] of a cache, as bytes.

    Raises:
        UsageError: not uint8, or entries of another size.
    """
    require_codes("paged cache", "cache", cache)
    data_bytes, scale_bytes = entry_bytes(layout, head_dim)
    expected = data_bytes + scale_bytes
    require(
        cache.ndim == 4 and cache.shape[2] == 1 and cache.shape[3] == expected,
        "paged cache",
        f"cache has shape {tuple(cache.shape)}: {layout} at head dim {head_dim} is "
        f"[pages, page_size, 1, {expected}]",
    )
    pages, page_size = cache.shape[:2]
    flat = cache.reshape(pages, page_size * expected)
    data = flat[:, : page_size * data_bytes].reshape(pages, page_size, data_bytes)
    scales = flat[:, page_size * data_bytes :].reshape(pages, page_size, scale_bytes)
    return data, scales


def page_values(cache: torch.Tensor, layout: str, head_dim: int) -> torch.Tensor:
    """float32 values [pages * page_size, head_dim] of every entry."""
    data, scales = page_planes(cache, layout, head_dim)
    if layout == "index_fp8":
        factors = scales.contiguous().view(torch.float32)
    elif layout == "kv_fp4":
        factors = decode_e4m3(scales, torch.float32)
    else:
        factors = decode_ue8m0(scales, torch.float32)
    decode = decode_e2m1 if layout in ("kv_fp4", "index_fp4") else decode_e4m3
    values = decode(data, torch.float32).reshape(*factors.shape, head_dim // factors.shape[-1])
    return (values * factors.unsqueeze(-1)).reshape(-1, head_dim)


def pages_of(data: torch.Tensor, scales: torch.Tensor, page_size: int) -> torch.Tensor:
    """Pack entries: data [n, .] and scales [n, .] bytes, the last page filled up with zeros.

    Raises:
        UsageError: not uint8, another number of entries.
    """
    require_codes("paged cache", "data", data)
    require_codes("paged cache", "scales", scales)
    count = data.shape[0]
    require(scales.shape[0] == count, "paged cache", f"{count} entries, {len(scales)} scale rows")
    pages = -(-count // page_size)
    planes = []
    for part in (data, scales):
        filled = part.new_zeros(pages * page_size, part.shape[1])
        filled[:count] = part
        planes.append(filled.reshape(pages, page_size * part.shape[1]))
    width = data.shape[1] + scales.shape[1]
    return torch.cat(planes, dim=1).reshape(pages, page_size, 1, width)
