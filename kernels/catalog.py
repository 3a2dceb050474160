"""Every op that has a kernel, by lazy target: listing them loads neither torch nor an SDK."""

from __future__ import annotations

from harness.core.registry import Registry

__all__ = ["KERNELS"]

_OPS = (
    ("rms_norm", "rms_norm"),
    ("rope", "rope"),
    ("quantise_fp8", "quantise_fp8"),
    ("dequantise_fp8", "quantise_fp8"),
    ("quantise_fp4", "quantise_fp4"),
    ("dequantise_fp4", "quantise_fp4"),
    ("linear_fp8", "linear_fp8"),
    ("linear_fp4_grouped", "linear_fp4_grouped"),
    ("linear_bf16", "linear_bf16"),
    ("swiglu", "swiglu"),
    ("sparse_attention", "sparse_attention"),
    ("prefill_attention", "prefill_attention"),
    ("index_scores", "index_scores"),
    ("router", "router"),
    ("topk_positions", "topk_positions"),
    ("candidate_blocks", "candidate_blocks"),
    ("compress_pool", "compress_pool"),
    ("hc_mixes", "hc_mixes"),
    ("hc_collapse", "hc_collapse"),
    ("hc_expand", "hc_expand"),
    ("engram_lookup", "engram_lookup"),
    ("engram_gate", "engram_gate"),
    ("output_projection", "output_projection"),
    ("vocab_argmax", "vocab_argmax"),
    ("vocab_topk", "vocab_topk"),
)

KERNELS = Registry("kernel", tuple((op, f"kernels.{stem}_nki:{op}") for op, stem in _OPS))
