"""Each constraint of model.md §6 is refused with file, field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.errors import InputError
from tests.tiny_checkpoints.real_config import REAL_TEXT_CONFIG
from tiny_checkpoints.geometry import Geometry


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("hidden_size", 5100, "multiple of 32"),
        ("head_dim", 500, "multiple of 32"),
        ("num_attention_heads", 63, "multiple of o_groups"),
        ("qk_rope_head_dim", 65, "even"),
        ("qk_rope_head_dim", 192, "at most head_dim and index_head_dim"),
        ("compress_ratios", [0, 2, 1], "40 or 43 ratios"),
        ("compress_ratios", [4] * 40, "out of 0, 1, 2"),
        ("kv_source_layer_ids", [2, 8, 14, 21], "every kv source is an index source"),
        ("index_topk", 16378, "must reach index_topk"),
        ("num_experts_per_tok", 385, "at most n_routed_experts"),
        ("dspark_num_experts_per_tok", 129, "at most dspark_n_routed_experts"),
        ("dspark_noise_token_id", 129280, "id of the vocabulary"),
        ("engram_num_embeddings", [384006168, 384016683], "sums of the layers' primes"),
        ("vocab_size", "many", "must be an integer"),
        ("vocab_size", True, "must be an integer"),
        ("engram_layer_ids", [1, 1.5], "must be a list of integers"),
    ],
)
def test_an_impossible_dimension_is_refused(field: str, value: Any, remedy: str) -> None:
    config = {**REAL_TEXT_CONFIG, field: value}
    with pytest.raises(InputError, match=remedy) as caught:
        Geometry.from_config(config, "some/config.json")
    assert caught.value.file == "some/config.json"
    assert caught.value.field == f"text_config.{field}"


def test_a_missing_key_is_named() -> None:
    config = {key: value for key, value in REAL_TEXT_CONFIG.items() if key != "o_groups"}
    with pytest.raises(InputError, match=r"text_config.o_groups is 'absent'"):
        Geometry.from_config(config, "config.json")


def test_ratios_may_leave_the_draft_stages_out() -> None:
    config = {**REAL_TEXT_CONFIG, "compress_ratios": REAL_TEXT_CONFIG["compress_ratios"][:40]}
    assert Geometry.from_config(config, "config.json").ratio(39) == 1
