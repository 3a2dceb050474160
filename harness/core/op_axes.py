"""The words a case is written in: axis letters of each op, families, layouts.

Suites read them, inputs are built from them; letters are those of harness.core.ops' legend.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["FAMILIES", "LAYOUTS", "OP_AXES"]

# "?" marks an axis that may be left out.
OP_AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rms_norm": ("T", "d"),
        "rope": ("T", "H?", "D", "R"),
        "quantise_fp8": ("T", "K"),
        "dequantise_fp8": ("T", "K"),
        "quantise_fp4": ("T", "K"),
        "dequantise_fp4": ("T", "K"),
        "linear_fp8": ("T", "N", "K"),
        "linear_fp4_grouped": ("T", "E", "N", "K"),
        "linear_bf16": ("T", "N", "K"),
        "swiglu": ("T", "I"),
        "router": ("T", "d", "E"),
        "sparse_attention": ("T", "H", "D", "n", "M"),
        "prefill_attention": ("T", "H", "D", "N"),
        "index_scores": ("T", "h", "x", "n"),
        "candidate_blocks": ("T", "n"),
        "topk_positions": ("T", "n"),
        "compress_pool": ("T", "D"),
        "hc_mixes": ("T", "m", "d"),
        "hc_collapse": ("T", "m", "d"),
        "hc_expand": ("T", "m", "d"),
        "engram_lookup": ("T", "F", "W", "rows"),
        "engram_gate": ("T", "m", "d"),
        "output_projection": ("T", "H", "D", "G", "L"),
        "vocab_argmax": ("T", "V"),
        "vocab_topk": ("T", "V"),
    }
)

# The first six differ by their axes only; the others by their values.
FAMILIES = (
    "base",
    "tile_minus_1",
    "tile_plus_1",
    "one_row",
    "tail",
    "sharded",
    "zero_rows",
    "zero_block",
    "extremes",
    "masked_rows",
    "ties",
    "scale_up",
    "small_rows",
    "spread_blocks",
    "midpoints",
)

LAYOUTS = ("contiguous", "transposed", "strided", "offset", "expanded")
