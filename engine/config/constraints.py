"""What a configuration must satisfy so that the model can be laid out (model.md §1.2, §6)."""

from __future__ import annotations

from engine.config.model import ModelConfig
from engine.config.source import JsonSource
from engine.engram.primes import engram_primes

__all__ = ["check_constraints"]

_TILE = 32


def check_constraints(config: ModelConfig, text: JsonSource) -> None:
    """Check every constraint; the first violation is raised.

    Raises:
        InputError: names file, key, value and what would be legal.
    """
    _check_widths(config, text)
    _check_layers(config, text)
    _check_index(config, text)
    _check_experts(config, text)
    _check_engram(config, text)
    _check_draft(config, text)


def _require(holds: bool, text: JsonSource, key: str, remedy: str) -> None:
    if not holds:
        raise text.error(key, text.values.get(key), remedy)


def _check_widths(config: ModelConfig, text: JsonSource) -> None:
    for key, width in (
        ("hidden_size", config.hidden_size),
        ("moe_intermediate_size", config.expert_width),
        ("q_lora_rank", config.q_lora_rank),
        ("o_lora_rank", config.o_lora_rank),
        ("head_dim", config.head_dim),
        ("index_head_dim", config.index.head_dim),
    ):
        _require(width % _TILE == 0, text, key, f"a multiple of {_TILE} is needed (fp8 tiles)")
    shorter = min(config.head_dim, config.index.head_dim)
    remedy = f"an even number up to {shorter} is needed (head_dim and index_head_dim)"
    legal = config.rope_dim % 2 == 0 and config.rope_dim <= shorter
    _require(legal, text, "qk_rope_head_dim", remedy)
    divides = config.num_heads % config.o_groups == 0
    _require(divides, text, "o_groups", f"it must divide num_attention_heads={config.num_heads}")
    for name, token in (
        ("bos_token_id", config.bos_token_id),
        ("eos_token_id", config.eos_token_id),
        ("pad_token_id", config.pad_token_id),
    ):
        fits = token < config.vocab_size
        _require(fits, text, "vocab_size", f"it must exceed {name}={token}")


def _check_layers(config: ModelConfig, text: JsonSource) -> None:
    ratios = config.ratios
    _require(set(ratios) <= {0, 1, 2}, text, "compress_ratios", "ratios are 0, 1 or 2")
    for key, ids in (
        ("kv_source_layer_ids", config.kv_sources),
        ("index_source_layer_ids", config.index_sources),
    ):
        ascending = list(ids) == sorted(set(ids))
        _require(ascending, text, key, "ascending ids, each once, are needed")
        inside = all(layer < config.num_layers for layer in ids)
        _require(inside, text, key, f"layer ids are below {config.num_layers}")
        compressed = inside and all(ratios[layer] > 0 for layer in ids)
        _require(compressed, text, key, "a source layer needs a compress ratio above 0")
    subset = set(config.kv_sources) <= set(config.index_sources)
    remedy = f"every kv source {list(config.kv_sources)} must be an index source"
    _require(subset, text, "index_source_layer_ids", remedy)
    for role in config.roles:
        if role.ratio == 0:
            continue
        remedy = f"layer {role.layer_id} has ratio {role.ratio} and no kv source at or before it"
        _require(role.kv_owner is not None, text, "kv_source_layer_ids", remedy)
        owner = role.kv_owner
        assert owner is not None
        remedy = (
            f"layer {role.layer_id} has ratio {role.ratio}, its kv source {owner} has "
            f"{ratios[owner]}; they must be equal"
        )
        _require(ratios[owner] == role.ratio, text, "compress_ratios", remedy)


def _check_index(config: ModelConfig, text: JsonSource) -> None:
    index = config.index
    source = index.candidate_source
    if source is None:
        return
    known = source in config.index_sources
    _require(known, text, "candidate_source_layer_id", "it must be an index source")
    reach = index.candidate_blocks * index.candidate_block_size - (index.candidate_block_size - 1)
    remedy = (
        f"candidate_topk_blocks * candidate_block_size - (candidate_block_size - 1) = {reach} "
        f"must be at least index_topk={index.top_k}"
    )
    _require(reach >= index.top_k, text, "candidate_topk_blocks", remedy)
    owner = config.role(source).kv_owner
    for layer in config.index_sources:
        role = config.role(layer)
        same = not role.uses_candidates or role.kv_owner == owner
        remedy = f"index source {layer} reads another cache than the candidates come from"
        _require(same, text, "candidate_source_layer_id", remedy)


def _check_experts(config: ModelConfig, text: JsonSource) -> None:
    enough = config.num_experts >= config.experts_per_token
    remedy = f"at least num_experts_per_tok={config.experts_per_token} experts are needed"
    _require(enough, text, "n_routed_experts", remedy)


def _check_engram(config: ModelConfig, text: JsonSource) -> None:
    engram = config.engram
    if engram is None:
        return
    inside = all(layer < config.num_layers for layer in engram.layer_ids)
    _require(inside, text, "engram_layer_ids", f"layer ids are below {config.num_layers}")
    _require(engram.head_dim % _TILE == 0, text, "engram_head_dim", f"a multiple of {_TILE}")
    fits = engram.pad_token_id < config.vocab_size
    _require(fits, text, "engram_pad_token_id", f"ids are below vocab_size={config.vocab_size}")
    fits = engram.compressed_vocab_size <= config.vocab_size
    _require(fits, text, "engram_compressed_vocab_size", "it cannot exceed vocab_size")
    rows = tuple(sum(map(sum, primes)) for primes in engram_primes(engram))
    remedy = f"the primes of model.md §2.9 give {list(rows)} rows"
    _require(engram.num_embeddings == rows, text, "engram_num_embeddings", remedy)


def _check_draft(config: ModelConfig, text: JsonSource) -> None:
    draft = config.draft
    if draft is None:
        return
    inside = all(layer < config.num_layers for layer in draft.target_layer_ids)
    key = "dspark_target_layer_ids"
    _require(inside and bool(draft.target_layer_ids), text, key, "give ids of backbone layers")
    fits = draft.noise_token_id < config.vocab_size
    remedy = f"ids are below vocab_size={config.vocab_size}"
    _require(fits, text, "dspark_noise_token_id", remedy)
    enough = draft.num_experts >= draft.top_k
    remedy = f"at least dspark_num_experts_per_tok={draft.top_k} experts are needed"
    _require(enough, text, "dspark_n_routed_experts", remedy)
