"""One small case per op, for tests that go over the whole sheet."""

from __future__ import annotations

from dataclasses import replace

from harness.core.case import Case

__all__ = ["AXES", "small_case"]

AXES: dict[str, dict[str, int]] = {
    "rms_norm": {"T": 5, "d": 96},
    "rope": {"T": 4, "H": 3, "D": 64, "R": 32},
    "quantise_fp8": {"T": 5, "K": 96},
    "dequantise_fp8": {"T": 5, "K": 96},
    "quantise_fp4": {"T": 5, "K": 96},
    "dequantise_fp4": {"T": 5, "K": 96},
    "linear_fp8": {"T": 5, "N": 48, "K": 96},
    "linear_fp4_grouped": {"T": 7, "E": 4, "N": 40, "K": 64},
    "linear_bf16": {"T": 5, "N": 24, "K": 48},
    "swiglu": {"T": 5, "I": 64},
    "router": {"T": 5, "d": 64, "E": 16},
    "sparse_attention": {"T": 5, "H": 4, "D": 32, "n": 24, "M": 12},
    "prefill_attention": {"T": 5, "H": 4, "D": 32, "N": 40},
    "index_scores": {"T": 5, "h": 4, "x": 32, "n": 20},
    "candidate_blocks": {"T": 6, "n": 44},
    "topk_positions": {"T": 6, "n": 30},
    "compress_pool": {"T": 8, "D": 32},
    "hc_mixes": {"T": 5, "m": 4, "d": 32},
    "hc_collapse": {"T": 5, "m": 4, "d": 32},
    "hc_expand": {"T": 5, "m": 4, "d": 32},
    "engram_lookup": {"T": 5, "F": 6, "W": 32, "rows": 50},
    "engram_gate": {"T": 5, "m": 4, "d": 32},
    "output_projection": {"T": 4, "H": 8, "D": 32, "G": 4, "L": 16},
    "vocab_argmax": {"T": 6, "V": 100},
    "vocab_topk": {"T": 6, "V": 100},
}


def small_case(op: str, **changes: object) -> Case:
    """The small case of an op with some fields replaced."""
    return replace(Case(op, AXES[op]), **changes)  # type: ignore[arg-type]
