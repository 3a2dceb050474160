"""config.json -> ModelConfig, from the nested (HF) or the flat (inference/) form."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from engine.config.constraints import check_constraints
from engine.config.fields import (
    FLAT_RUNTIME_KEYS,
    FLAT_TO_NESTED,
    IGNORED_TEXT_KEYS,
    KNOWN_TEXT_KEYS,
    REQUIRED_VALUES,
    TOP_LEVEL_KEYS,
)
from engine.config.model import DraftConfig, EngramConfig, IndexConfig, ModelConfig, RopeConfig
from engine.config.source import JsonSource
from harness.core.errors import InputError
from harness.core.suggest import near_names

__all__ = ["load_model_config", "model_config_file", "parse_model_config"]

_QUANTISATION = {
    "quant_method": "fp8",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}


def load_model_config(checkpoint: str | Path) -> ModelConfig:
    """The configuration of a checkpoint directory.

    Reads `config.json`, or `inference/config.json` where only that exists.

    Raises:
        InputError: no such file, no JSON, an unknown, missing or contradictory key.
    """
    return parse_model_config(model_config_file(checkpoint))


def model_config_file(checkpoint: str | Path) -> Path:
    """The configuration file of a checkpoint directory.

    Raises:
        InputError: the directory or the file does not exist.
    """
    directory = Path(checkpoint)
    if not directory.is_dir():
        raise InputError(directory, "checkpoint", "absent", "give an existing directory")
    for candidate in (directory / "config.json", directory / "inference" / "config.json"):
        if candidate.is_file():
            return candidate
    raise InputError(directory, "config.json", "absent", "a checkpoint has a config.json")


def parse_model_config(file: str | Path) -> ModelConfig:
    """The configuration in one file.

    Raises:
        InputError: see `load_model_config`.
    """
    values = _read_json(Path(file))
    if "text_config" in values:
        text, top = _nested(str(file), values)
    elif "dim" in values or "n_layers" in values:
        text, top = _flat(str(file), values)
    else:
        remedy = "the nested form has a text_config, the flat form has dim and n_layers"
        raise InputError(file, "text_config", None, remedy)
    config = _build(text, top)
    check_constraints(config, text)
    return config


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(file, "file", error.strerror, "make the file readable") from error
    except ValueError as error:
        raise InputError(file, "JSON", str(error), "repair the file") from error
    if not isinstance(values, dict):
        raise InputError(file, "JSON", type(values).__name__, "an object belongs here")
    return values


def _nested(file: str, values: dict[str, Any]) -> tuple[JsonSource, JsonSource]:
    top = JsonSource(file, values)
    _warn_unknown(top, TOP_LEVEL_KEYS)
    text_values = values["text_config"]
    if not isinstance(text_values, dict):
        raise top.error("text_config", text_values, "an object belongs here")
    text_values = dict(text_values)
    if "engram_pad_id" in text_values:
        text_values.setdefault("engram_pad_token_id", text_values.pop("engram_pad_id"))
    text = JsonSource(file, text_values, "text_config.")
    for key in text_values:
        if key not in KNOWN_TEXT_KEYS and key not in IGNORED_TEXT_KEYS:
            near = near_names(key, KNOWN_TEXT_KEYS)
            raise text.error(key, text_values[key], f"this key is not known{near}")
    _check_quantisation(top)
    return text, top


def _flat(file: str, values: dict[str, Any]) -> tuple[JsonSource, JsonSource]:
    top = JsonSource(file, values)
    renamed = {FLAT_TO_NESTED.get(key, key): value for key, value in values.items()}
    for key, needed in (("dtype", "fp8"), ("expert_dtype", "fp4")):
        if renamed.pop(key, needed) != needed:
            raise top.error(key, values[key], f"only {needed} weights are supported")
    scaling = {
        "factor": renamed.pop("rope_factor", 1),
        "beta_fast": renamed.pop("beta_fast", 32),
        "beta_slow": renamed.pop("beta_slow", 1),
        "original_max_position_embeddings": renamed.pop("original_seq_len", 0),
    }
    if scaling["original_max_position_embeddings"]:
        renamed["rope_scaling"] = {"rope_type": "yarn", **scaling}
    known = KNOWN_TEXT_KEYS | IGNORED_TEXT_KEYS | FLAT_RUNTIME_KEYS
    _warn_unknown(JsonSource(file, renamed), known)
    return JsonSource(file, renamed), top


def _warn_unknown(source: JsonSource, known: frozenset[str]) -> None:
    for key in source.values:
        if key not in known:
            warnings.warn(f"{source.file}: key {key!r} is not known, ignored", stacklevel=4)


def _check_quantisation(top: JsonSource) -> None:
    section = top.values.get("quantization_config")
    if not isinstance(section, dict):
        raise top.error("quantization_config", section, "fp8 weights in 32x32 blocks are needed")
    for key, needed in _QUANTISATION.items():
        if section.get(key, needed) != needed:
            field = f"quantization_config.{key}"
            raise top.error(field, section[key], f"only {needed!r} is supported")


def _build(text: JsonSource, top: JsonSource) -> ModelConfig:
    for key, needed in REQUIRED_VALUES.items():
        if text.values.get(key, needed) != needed:
            raise text.error(key, text.values[key], f"this architecture has {needed!r}")
    num_layers = text.integer("num_hidden_layers")
    draft = _draft(text)
    return ModelConfig(
        vocab_size=text.integer("vocab_size"),
        hidden_size=text.integer("hidden_size"),
        num_layers=num_layers,
        num_heads=text.integer("num_attention_heads"),
        head_dim=text.integer("head_dim"),
        rope_dim=text.integer("qk_rope_head_dim"),
        q_lora_rank=text.integer("q_lora_rank"),
        o_groups=text.integer("o_groups"),
        o_lora_rank=text.integer("o_lora_rank"),
        expert_width=text.integer("moe_intermediate_size"),
        num_experts=text.integer("n_routed_experts"),
        experts_per_token=text.integer("num_experts_per_tok"),
        route_scale=text.number("routed_scaling_factor"),
        gate_temp=text.number("gate_temp", 1.0),
        normalise_experts=text.flag("norm_topk_prob", True),
        swiglu_limit=text.number("swiglu_limit"),
        norm_eps=text.number("rms_norm_eps"),
        window=text.integer("sliding_window"),
        ratios=_ratios(text, num_layers, draft.num_stages if draft else 0),
        kv_sources=text.integers("kv_source_layer_ids"),
        index_sources=text.integers("index_source_layer_ids"),
        index=_index(text),
        hc_mult=text.integer("hc_mult"),
        hc_iterations=text.integer("hc_sinkhorn_iters"),
        hc_eps=text.number("hc_eps"),
        rope=_rope(text),
        engram=_engram(text),
        draft=draft,
        max_positions=text.integer("max_position_embeddings", 1 << 20),
        # The flat file lacks these three; the ids are the tokenizer's (model.md §1.4).
        bos_token_id=top.integer("bos_token_id", 0, minimum=0),
        eos_token_id=top.integer("eos_token_id", 1, minimum=0),
        pad_token_id=top.integer("pad_token_id", 2, minimum=0),
    )


def _ratios(text: JsonSource, num_layers: int, num_stages: int) -> tuple[int, ...]:
    ratios = text.integers("compress_ratios")
    if len(ratios) not in (num_layers, num_layers + num_stages):
        allowed = f"give one ratio for each of {num_layers} layers, draft stages optional"
        raise text.error("compress_ratios", list(ratios), allowed)
    if any(ratios[num_layers:]):
        raise text.error("compress_ratios", list(ratios), "draft stages have ratio 0")
    return ratios[:num_layers]


def _index(text: JsonSource) -> IndexConfig:
    source = text.values.get("candidate_source_layer_id")
    return IndexConfig(
        num_heads=text.integer("index_n_heads"),
        head_dim=text.integer("index_head_dim"),
        top_k=text.integer("index_topk"),
        candidate_source=(
            None if source is None else text.integer("candidate_source_layer_id", minimum=0)
        ),
        candidate_blocks=text.integer("candidate_topk_blocks"),
        candidate_block_size=text.integer("candidate_block_size"),
    )


def _rope(text: JsonSource) -> RopeConfig:
    theta, compress_theta = text.number("rope_theta"), text.number("compress_rope_theta")
    scaling = text.values.get("rope_scaling")
    if scaling is None:
        return RopeConfig(theta, compress_theta)
    if not isinstance(scaling, dict) or scaling.get("rope_type", "yarn") != "yarn":
        raise text.error("rope_scaling", scaling, "rope_type yarn, or null, belongs here")
    source = JsonSource(text.file, scaling, text.prefix + "rope_scaling.")
    return RopeConfig(
        theta,
        compress_theta,
        factor=source.number("factor"),
        beta_fast=source.number("beta_fast", 32),
        beta_slow=source.number("beta_slow", 1),
        original_positions=source.integer("original_max_position_embeddings"),
    )


def _engram(text: JsonSource) -> EngramConfig | None:
    layer_ids = text.integers("engram_layer_ids", ())
    if not layer_ids:
        return None
    return EngramConfig(
        layer_ids=layer_ids,
        max_ngram=text.integer("engram_max_ngram_size", minimum=2),
        num_heads=text.integer("engram_n_heads"),
        head_dim=text.integer("engram_head_dim"),
        vocab_size=text.integer("engram_vocab_size", minimum=2),
        pad_token_id=text.integer("engram_pad_token_id", minimum=0),
        compressed_vocab_size=text.integer("engram_compressed_vocab_size"),
        num_embeddings=text.integers("engram_num_embeddings"),
    )


def _draft(text: JsonSource) -> DraftConfig | None:
    num_stages = text.integer("num_nextn_predict_layers", 0, minimum=0)
    if num_stages == 0:
        return None
    return DraftConfig(
        num_stages=num_stages,
        block_size=text.integer("dspark_block_size"),
        noise_token_id=text.integer("dspark_noise_token_id", minimum=0),
        target_layer_ids=text.integers("dspark_target_layer_ids"),
        markov_rank=text.integer("dspark_markov_rank"),
        num_experts=text.integer("dspark_n_routed_experts"),
        top_k=text.integer("dspark_num_experts_per_tok"),
    )
