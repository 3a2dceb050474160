"""The JSON files beside the weights: nested config.json as in model.md §1.1, tokenizer, index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_checkpoints.engram_rows import engram_primes, engram_table_rows
from tiny_checkpoints.tokenizer import TinyTokenizer, compressed_vocab_size
from tiny_checkpoints.variants import Variant

__all__ = ["json_text", "model_config", "tokenizer_config", "write_json"]

_MAX_POSITIONS = 4096
_ENGRAM_VOCAB, _ENGRAM_HEADS, _ENGRAM_NGRAM = 64, 2, 4
_CONSTANTS: dict[str, Any] = {
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "max_position_embeddings": _MAX_POSITIONS,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "tie_word_embeddings": False,
    "dspark_block_size": 5,
}


def model_config(variant: Variant, tokenizer: TinyTokenizer) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": tokenizer.id_of("<｜deepseek_image｜>"),
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": _text_config(variant, tokenizer),
        "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 0},
    }


def tokenizer_config(tokenizer: TinyTokenizer) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.tokens[0],
        "eos_token": tokenizer.tokens[1],
        "pad_token": tokenizer.tokens[2],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _MAX_POSITIONS,
    }


def json_text(content: Any) -> str:
    """The text every JSON file of a checkpoint is written as."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, content: Any) -> None:
    """Write `json_text`, UTF-8 with LF line ends on every system."""
    path.write_bytes(json_text(content).encode())


def _text_config(variant: Variant, tokenizer: TinyTokenizer) -> dict[str, Any]:
    plan = variant.layers
    primes = engram_primes(len(plan.engram_layers), _ENGRAM_NGRAM, _ENGRAM_HEADS, _ENGRAM_VOCAB)
    return {
        "model_type": "deepseek_v41_text",
        "vocab_size": variant.vocab_size,
        "hidden_size": variant.hidden_size,
        "num_attention_heads": variant.num_heads,
        "head_dim": variant.head_dim,
        "qk_rope_head_dim": variant.rope_dim,
        "q_lora_rank": variant.q_lora_rank,
        "o_groups": variant.o_groups,
        "o_lora_rank": variant.o_lora_rank,
        "moe_intermediate_size": variant.moe_intermediate_size,
        "n_routed_experts": variant.num_experts,
        "num_experts_per_tok": variant.num_experts_per_tok,
        "sliding_window": variant.sliding_window,
        "index_n_heads": variant.index_heads,
        "index_head_dim": variant.index_head_dim,
        "index_topk": variant.index_topk,
        "candidate_topk_blocks": variant.candidate_blocks,
        "candidate_block_size": variant.candidate_block_size,
        "num_hidden_layers": len(plan.compress_ratios),
        "num_nextn_predict_layers": plan.draft_stages,
        "compress_ratios": [*plan.compress_ratios, *[0] * plan.draft_stages],
        "kv_source_layer_ids": list(plan.kv_sources),
        "index_source_layer_ids": list(plan.index_sources),
        "candidate_source_layer_id": plan.candidate_source,
        "dspark_target_layer_ids": list(plan.draft_targets),
        **_CONSTANTS,
        "hc_mult": variant.residual_streams,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": variant.rope_original_positions,
        },
        "engram_layer_ids": list(plan.engram_layers),
        "engram_num_embeddings": engram_table_rows(primes),
        "engram_max_ngram_size": _ENGRAM_NGRAM,
        "engram_n_heads": _ENGRAM_HEADS,
        "engram_head_dim": variant.engram_head_dim,
        "engram_vocab_size": _ENGRAM_VOCAB,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": compressed_vocab_size(tokenizer),
        "dspark_noise_token_id": tokenizer.id_of("<｜System｜>"),
        "dspark_markov_rank": variant.markov_rank,
        "dspark_n_routed_experts": variant.draft_experts,
        "dspark_num_experts_per_tok": variant.draft_experts_per_tok,
    }
