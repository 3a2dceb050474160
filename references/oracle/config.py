"""The numbers of config.json that the mathematics needs, nested or flat (model.md §1.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import InputError

__all__ = ["OracleConfig"]

# nested key -> key of the flat inference/config.json where it differs
_FLAT = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_nextn_predict_layers": "n_mtp_layers",
    "num_attention_heads": "n_heads",
    "qk_rope_head_dim": "rope_head_dim",
    "rms_norm_eps": "norm_eps",
    "num_experts_per_tok": "n_activated_experts",
    "routed_scaling_factor": "route_scale",
    "sliding_window": "window_size",
    "kv_source_layer_ids": "kv_source_layers",
    "index_source_layer_ids": "index_source_layers",
    "candidate_source_layer_id": "candidate_source_layer",
    "engram_pad_token_id": "engram_pad_id",
    "dspark_num_experts_per_tok": "dspark_n_activated_experts",
}
_OPTIONAL: dict[str, Any] = {
    "num_nextn_predict_layers": 0,
    "gate_temp": 1.0,
    "norm_topk_prob": True,
    "dspark_block_size": 0,
    "dspark_noise_token_id": 0,
    "dspark_target_layer_ids": (),
    "dspark_num_experts_per_tok": 0,
}


@dataclass(frozen=True, slots=True)
class OracleConfig:
    """Names as in the nested config.json; rope_* are the fields of rope_scaling."""

    hidden_size: int
    num_hidden_layers: int
    num_nextn_predict_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    num_experts_per_tok: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    gate_temp: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    rope_theta: float
    compress_rope_theta: float
    rope_factor: float
    rope_beta_fast: float
    rope_beta_slow: float
    rope_original_length: int
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_max_ngram_size: int
    engram_n_heads: int
    engram_vocab_size: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_num_experts_per_tok: int

    @classmethod
    def load(cls, path: Path) -> OracleConfig:
        """Read config.json.

        Raises:
            InputError: a key is missing.
        """
        raw = json.loads(path.read_text())
        text = raw.get("text_config", raw)
        fields: dict[str, Any] = dict(_rope_scaling(path, text))
        for name in cls.__dataclass_fields__:
            if name not in fields:
                fields[name] = _value(path, text, name)
        ratios = tuple(fields["compress_ratios"])
        missing = fields["num_hidden_layers"] + fields["num_nextn_predict_layers"] - len(ratios)
        fields["compress_ratios"] = ratios + (0,) * missing
        frozen: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
        }
        return cls(**frozen)

    def kv_owner(self, layer: int) -> int:
        """The layer whose compressed cache this layer reads."""
        return max(source for source in self.kv_source_layer_ids if source <= layer)


def _value(path: Path, text: Mapping[str, Any], name: str) -> Any:
    for key in (name, _FLAT.get(name, name)):
        if key in text:
            return text[key]
    if name in _OPTIONAL:
        return _OPTIONAL[name]
    raise InputError(path, name, None, "the oracle model needs this key")


def _rope_scaling(path: Path, text: Mapping[str, Any]) -> dict[str, Any]:
    nested = text.get("rope_scaling")
    keys = {
        "rope_factor": ("factor", "rope_factor"),
        "rope_beta_fast": ("beta_fast", "beta_fast"),
        "rope_beta_slow": ("beta_slow", "beta_slow"),
        "rope_original_length": ("original_max_position_embeddings", "original_seq_len"),
    }
    if nested is not None:
        return {name: _value(path, nested, inner) for name, (inner, _) in keys.items()}
    return {name: _value(path, text, flat) for name, (_, flat) in keys.items()}
