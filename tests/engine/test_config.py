"""config.json: both forms, unknown keys, and every constraint with its message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.fields import FLAT_TO_NESTED
from engine.config.limits import resolve_limits
from engine.config.model import ModelConfig
from engine.config.parse import load_model_config, parse_model_config
from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError, UsageError
from tests.engine.oracle import config_values, directory, edited_config

Edit = Callable[[dict[str, Any]], None]


def _text(**changes: Any) -> Edit:
    return lambda values: values["text_config"].update(changes)


def test_the_roles_of_the_layers_follow_from_the_source_lists() -> None:
    config = load_model_config(directory("long"))
    assert [role.kind for role in config.roles] == [
        "window",
        "window_engram",
        "full_r2",
        "reuse_r2",
        "full_r2_engram",
        "reuse_r2",
        "full_r1_candidates",
        "reuse_r1",
        "reindex_r1",
        "reuse_r1",
        "reindex_r1",
        "reuse_r1",
    ]
    assert [role.kv_owner for role in config.roles] == [None, None, 2, 2, 4, 4, *[6] * 6]
    assert [role.layer_id for role in config.roles if role.uses_candidates] == [8, 10]
    assert config.draft is None


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    names = {nested: flat for flat, nested in FLAT_TO_NESTED.items()}
    text = values["text_config"]
    scaling = text.pop("rope_scaling")
    for key in (
        "model_type",
        "hidden_act",
        "attention_bias",
        "topk_method",
        "norm_topk_prob",
        "num_key_value_heads",
        "max_position_embeddings",
    ):
        text.pop(key)
    flat = {names.get(key, key): value for key, value in text.items()}
    flat["engram_pad_id"] = flat.pop(names["engram_pad_token_id"])
    flat.update(
        rope_factor=scaling["factor"],
        beta_fast=scaling["beta_fast"],
        beta_slow=scaling["beta_slow"],
        original_seq_len=scaling["original_max_position_embeddings"],
        dtype="fp8",
        expert_dtype="fp4",
        max_batch_size=4,
        max_seq_len=4096,
        temperature=1.0,
    )
    return flat


def test_the_flat_form_says_the_same_as_the_nested_form(tmp_path: Path) -> None:
    nested = load_model_config(directory("steady_mtp"))
    (tmp_path / "inference").mkdir()
    flat_file = tmp_path / "inference" / "config.json"
    flat_file.write_text(json.dumps(_flat(config_values())))
    flat = load_model_config(tmp_path)
    fields = ModelConfig.__slots__
    differing = [name for name in fields if getattr(flat, name) != getattr(nested, name)]
    assert differing == ["max_positions"]  # the flat form has none: the real model's is taken


def test_ratios_may_include_the_draft_stages(tmp_path: Path) -> None:
    ratios = config_values()["text_config"]["compress_ratios"]
    longer = parse_model_config(edited_config(tmp_path, _text(compress_ratios=[*ratios, 0, 0, 0])))
    assert longer == load_model_config(directory("steady_mtp"))


def test_an_unknown_text_key_is_refused_and_a_near_name_offered(tmp_path: Path) -> None:
    file = edited_config(tmp_path, _text(slidin_window=3))
    with pytest.raises(InputError, match=r"slidin_window is 3: .*did you mean sliding") as e:
        parse_model_config(file)
    assert e.value.file == str(file)


def test_a_named_key_without_meaning_here_is_ignored(tmp_path: Path) -> None:
    parse_model_config(edited_config(tmp_path, _text(use_cache=True, initializer_range=0.02)))


def test_an_unknown_top_level_key_is_a_warning(tmp_path: Path) -> None:
    file = edited_config(tmp_path, lambda values: values.update(novelty=1))
    with pytest.warns(UserWarning, match="'novelty' is not known"):
        parse_model_config(file)


@pytest.mark.parametrize(
    ("edit", "field", "message"),
    [
        (_text(hidden_size=250), "hidden_size", "multiple of 32"),
        (_text(moe_intermediate_size=100), "moe_intermediate_size", "multiple of 32"),
        (_text(q_lora_rank=48), "q_lora_rank", "multiple of 32"),
        (_text(head_dim=48), "head_dim", "multiple of 32"),
        (_text(index_head_dim=40), "index_head_dim", "multiple of 32"),
        (_text(qk_rope_head_dim=15), "qk_rope_head_dim", "even number up to 64"),
        (_text(qk_rope_head_dim=96), "qk_rope_head_dim", "even number up to 64"),
        (_text(o_groups=3), "o_groups", "divide num_attention_heads=4"),
        (_text(compress_ratios=[0, 0, 3, 3, 1, 1, 1, 1]), "compress_ratios", "0, 1 or 2"),
        (_text(compress_ratios=[0, 0, 2, 1, 1, 1, 1, 1]), "compress_ratios", "its kv source 2"),
        (_text(compress_ratios=[0, 0, 2]), "compress_ratios", "one ratio for each of 8 layers"),
        (_text(kv_source_layer_ids=[2, 4, 5]), "index_source_layer_ids", "must be an index source"),
        (_text(kv_source_layer_ids=[4]), "kv_source_layer_ids", "no kv source at or before"),
        (_text(kv_source_layer_ids=[4, 2]), "kv_source_layer_ids", "ascending"),
        (_text(index_source_layer_ids=[0, 2, 4]), "index_source_layer_ids", "ratio above 0"),
        (_text(candidate_source_layer_id=3), "candidate_source_layer_id", "an index source"),
        (_text(candidate_topk_blocks=2), "candidate_topk_blocks", "= 5 must be at least"),
        (_text(candidate_source_layer_id=2), "candidate_source_layer_id", "another cache"),
        (_text(num_experts_per_tok=9), "n_routed_experts", "at least num_experts_per_tok=9"),
        (_text(engram_num_embeddings=[660, 865]), "engram_num_embeddings", r"\[660, 864\]"),
        (_text(engram_head_dim=24), "engram_head_dim", "multiple of 32"),
        (_text(engram_layer_ids=[1, 9]), "engram_layer_ids", "below 8"),
        (_text(dspark_noise_token_id=512), "dspark_noise_token_id", "below vocab_size=512"),
        (_text(dspark_target_layer_ids=[8]), "dspark_target_layer_ids", "backbone layers"),
        (_text(dspark_n_routed_experts=1), "dspark_n_routed_experts", "at least"),
        (_text(hidden_act="gelu"), "hidden_act", "'silu'"),
        (_text(n_shared_experts=2), "n_shared_experts", "this architecture has 1"),
        (_text(vocab_size=2, dspark_noise_token_id=1), "vocab_size", "exceed pad_token_id=2"),
        (_text(hidden_size="256"), "hidden_size", "an integer"),
        (_text(hidden_size=None), "hidden_size", "needs it"),
        (_text(rms_norm_eps=0), "rms_norm_eps", "positive"),
        (_text(rope_scaling={"rope_type": "linear"}), "rope_scaling", "yarn"),
        (
            lambda values: values["quantization_config"].update(weight_block_size=[128, 128]),
            "quantization_config.weight_block_size",
            "32, 32",
        ),
    ],
)
def test_a_violated_constraint_names_file_key_value_and_remedy(
    tmp_path: Path, edit: Edit, field: str, message: str
) -> None:
    file = edited_config(tmp_path, edit)
    with pytest.raises(InputError, match=message) as caught:
        parse_model_config(file)
    assert caught.value.field.endswith(field)
    assert caught.value.file == str(file)
    assert caught.value.remedy


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"config\.json"):
        parse_model_config(file)


def test_an_absent_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="existing directory"):
        load_model_config(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"has a config\.json"):
        load_model_config(tmp_path)


def _limits(**changes: Any) -> Any:
    config = load_model_config(directory("steady_mtp"))
    return resolve_limits(EngineSettings("x", **changes), config)


def test_tiny_defaults_are_those_of_the_specification() -> None:
    limits = _limits()
    assert (limits.page_size, limits.token_bucket, limits.context_buckets) == (8, 16, (64, 128))
    assert limits.max_model_len == 128


def test_max_model_len_is_the_implicit_last_bucket() -> None:
    assert _limits(max_model_len=100).context_buckets == (64, 100)
    assert _limits(max_model_len=300, context_buckets=(50, 200)).context_buckets == (50, 200, 300)
    assert _limits(context_buckets=(32,)).max_model_len == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 7}, "page_size=7: a multiple of compress ratio 2"),
        ({"context_buckets": (64, 32)}, "ascending"),
        ({"context_buckets": (64,), "max_model_len": 32}, "none may exceed max_model_len=32"),
        ({"max_model_len": 5000}, "the model has 4096 positions"),
        ({"max_model_len": -1}, "max_model_len=-1: it is positive, or 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens=-1: it is positive, or 0"),
        ({"token_bucket": -1}, "token_bucket=-1"),
        ({"page_size": -2}, "page_size=-2"),
        ({"num_kv_blocks": -1}, "num_kv_blocks=-1"),
        ({"num_threads": -1}, "num_threads=-1"),
        ({"time_limit_s": float("nan")}, "time_limit_s=nan: a time limit is positive and finite"),
    ],
)
def test_limits_that_contradict_one_another_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        _limits(**changes)
