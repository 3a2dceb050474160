"""Names of configuration keys: the nested file's, the flat file's, and what is ignored."""

from __future__ import annotations

__all__ = [
    "FLAT_RUNTIME_KEYS",
    "FLAT_TO_NESTED",
    "IGNORED_TEXT_KEYS",
    "KNOWN_TEXT_KEYS",
    "REQUIRED_VALUES",
    "TOP_LEVEL_KEYS",
]

# Flat `inference/config.json` -> key of `text_config`. Same-named keys are not listed.
FLAT_TO_NESTED = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_mtp_layers": "num_nextn_predict_layers",
    "n_heads": "num_attention_heads",
    "rope_head_dim": "qk_rope_head_dim",
    "norm_eps": "rms_norm_eps",
    "n_activated_experts": "num_experts_per_tok",
    "moe_inter_dim": "moe_intermediate_size",
    "score_func": "scoring_func",
    "route_scale": "routed_scaling_factor",
    "window_size": "sliding_window",
    "kv_source_layers": "kv_source_layer_ids",
    "index_source_layers": "index_source_layer_ids",
    "candidate_source_layer": "candidate_source_layer_id",
    "engram_layers": "engram_layer_ids",
    "engram_pad_id": "engram_pad_token_id",
    "dspark_target_layers": "dspark_target_layer_ids",
    "dspark_n_activated_experts": "dspark_num_experts_per_tok",
}

# Runtime knobs and storage notes of the flat file that say nothing about the model.
FLAT_RUNTIME_KEYS = frozenset({"max_batch_size", "max_seq_len", "temperature", "scale_fmt"})

# Facts the engine is built on; another value is another architecture.
REQUIRED_VALUES: dict[str, object] = {
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "n_shared_experts": 1,
    "tie_word_embeddings": False,
}

# Keys of text_config that are tolerated and mean nothing to this engine.
IGNORED_TEXT_KEYS = frozenset(
    {
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "model_type",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)

KNOWN_TEXT_KEYS = frozenset(
    {
        *REQUIRED_VALUES,
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_nextn_predict_layers",
        "num_attention_heads",
        "head_dim",
        "qk_rope_head_dim",
        "q_lora_rank",
        "o_groups",
        "o_lora_rank",
        "swiglu_limit",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_theta",
        "rope_scaling",
        "compress_rope_theta",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "routed_scaling_factor",
        "gate_temp",
        "sliding_window",
        "compress_ratios",
        "kv_source_layer_ids",
        "index_source_layer_ids",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "candidate_source_layer_id",
        "candidate_topk_blocks",
        "candidate_block_size",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
        "engram_layer_ids",
        "engram_num_embeddings",
        "engram_max_ngram_size",
        "engram_n_heads",
        "engram_head_dim",
        "engram_vocab_size",
        "engram_pad_token_id",
        "engram_compressed_vocab_size",
        "dspark_block_size",
        "dspark_noise_token_id",
        "dspark_target_layer_ids",
        "dspark_markov_rank",
        "dspark_n_routed_experts",
        "dspark_num_experts_per_tok",
    }
)

TOP_LEVEL_KEYS = frozenset(
    {
        "architectures",
        "model_type",
        "dtype",
        "torch_dtype",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "image_token_id",
        "quantization_config",
        "text_config",
        "vision_config",
        "transformers_version",
        "tie_word_embeddings",
    }
)
