"""The reference op table: every op of the signature sheet in plain torch.

Engines name it "references.op_table:TABLE". Parameters (norm weights, router, fn, ...) may be
passed in any float dtype; an engine that holds them in the accumulation dtype saves a cast per
call. Quantised weights keep their dequantised copy themselves.
"""

from __future__ import annotations

from harness.core.op_table import OpTable
from references.candidate_blocks import candidate_blocks
from references.compress_pool import compress_pool
from references.engram_gate import engram_gate
from references.engram_lookup import engram_lookup
from references.hc_collapse import hc_collapse
from references.hc_expand import hc_expand
from references.hc_mixes import hc_mixes
from references.index_scores import index_scores
from references.linear_bf16 import linear_bf16
from references.linear_fp4_grouped import linear_fp4_grouped
from references.linear_fp8 import linear_fp8
from references.output_projection import output_projection
from references.prefill_attention import prefill_attention
from references.quantise_fp4 import dequantise_fp4, quantise_fp4
from references.quantise_fp8 import dequantise_fp8, quantise_fp8
from references.rms_norm import rms_norm
from references.rope import rope
from references.router import router
from references.sparse_attention import sparse_attention
from references.swiglu import swiglu
from references.topk_positions import topk_positions
from references.vocab_argmax import vocab_argmax
from references.vocab_topk import vocab_topk

__all__ = ["TABLE"]

TABLE = OpTable(
    {
        op.__name__: op
        for op in (
            rms_norm,
            rope,
            quantise_fp8,
            dequantise_fp8,
            quantise_fp4,
            dequantise_fp4,
            linear_fp8,
            linear_fp4_grouped,
            linear_bf16,
            swiglu,
            router,
            sparse_attention,
            prefill_attention,
            index_scores,
            candidate_blocks,
            topk_positions,
            compress_pool,
            hc_mixes,
            hc_collapse,
            hc_expand,
            engram_lookup,
            engram_gate,
            output_projection,
            vocab_argmax,
            vocab_topk,
        )
    }
)
