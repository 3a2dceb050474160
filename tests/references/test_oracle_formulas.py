"""Published figures of model.md: Engram primes, multipliers and hashes, YaRN, configurations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import InputError
from references.oracle.config import OracleConfig
from references.oracle.engram import (
    EngramHash,
    compressed_token_ids,
    normalised_text,
    token_map,
)
from references.oracle.rows import rope_frequencies
from tests.references.vectors import DIRECTORY

FLAT = {
    "dim": 5120, "n_layers": 40, "n_mtp_layers": 3, "n_heads": 64, "head_dim": 512,
    "rope_head_dim": 64, "o_groups": 8, "swiglu_limit": 10.0, "norm_eps": 1e-20,
    "n_activated_experts": 6, "route_scale": 1.5, "window_size": 128,
    "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 0],
    "rope_theta": 10000, "compress_rope_theta": 160000, "rope_factor": 16, "beta_fast": 32,
    "beta_slow": 1, "original_seq_len": 65536, "kv_source_layers": [2, 8, 14, 20],
    "index_source_layers": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 512, "candidate_source_layer": 20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_vocab_size": 16000000,
    "engram_pad_id": 2, "engram_compressed_vocab_size": 99092, "dspark_block_size": 5,
    "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [37, 38, 39],
    "dspark_n_activated_experts": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def real_config(tmp_path_factory: pytest.TempPathFactory) -> OracleConfig:
    path = tmp_path_factory.mktemp("flat") / "config.json"
    path.write_text(json.dumps(FLAT))
    return OracleConfig.load(path)


@pytest.fixture(scope="module")
def real_hash(real_config: OracleConfig) -> EngramHash:
    return EngramHash(real_config, pad=0)


def test_real_engram_primes(real_hash: EngramHash) -> None:
    assert real_hash.primes[1][0] == [
        16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
    ]  # fmt: skip
    assert real_hash.primes[14][-1][-1] == 16000889
    rows = {layer: sum(map(sum, orders)) for layer, orders in real_hash.primes.items()}
    assert rows == {1: 384006168, 14: 384016682}


def test_real_engram_multipliers(real_hash: EngramHash) -> None:
    assert real_hash.multipliers[1] == [
        76632096046245, 4839876093313, 35959672319349, 73987337458391,
    ]  # fmt: skip
    assert real_hash.multipliers[14] == [
        67716810739261, 51510806800915, 30921347202721, 82619226485591,
    ]  # fmt: skip


def test_real_engram_rows(real_hash: EngramHash) -> None:
    oldest_first = [11, 9, 7, 5]
    assert real_hash.rows(1, oldest_first) == [
        6961830, 31143904, 34796895, 48021142, 75858929, 90471933, 97778503, 125113896,
        134700989, 153834998, 174087251, 186734152, 196247399, 209004353, 228140036, 243023555,
        264676428, 287408211, 303047881, 310868016, 326748484, 350569360, 357435863, 372961338,
    ]  # fmt: skip
    last_layer = real_hash.rows(14, oldest_first)
    assert (last_layer[0], last_layer[-1]) == (937800, 370806320)


def test_a_short_history_hashes_like_one_padded_in_front(real_hash: EngramHash) -> None:
    assert real_hash.rows(1, [7, 5]) == real_hash.rows(1, [0, 0, 7, 5])
    assert real_hash.rows(1, [3, 11, 9, 7, 5]) == real_hash.rows(1, [11, 9, 7, 5])
    assert real_hash.rows(1, [7, 5]) != real_hash.rows(1, [5, 7])


def test_tiny_engram_primes_and_multipliers(real_config: OracleConfig) -> None:
    fields = {name: getattr(real_config, name) for name in real_config.__dataclass_fields__}
    tiny = OracleConfig(
        **{
            **fields,
            "engram_layer_ids": (1, 4),
            "engram_n_heads": 2,
            "engram_vocab_size": 64,
            "engram_compressed_vocab_size": 500,
        }
    )
    hashing = EngramHash(tiny, pad=0)
    assert hashing.primes == {
        1: [[67, 71], [73, 79], [83, 89]],
        4: [[97, 101], [103, 107], [109, 113]],
    }
    assert hashing.multipliers[1] == [
        15187255322829265, 959186003677247, 7126631698937927, 14663106486854049,
    ]  # fmt: skip
    assert hashing.multipliers[4] == [
        16302659170719361, 998409774299701, 14596936209060157, 3756550560441335,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rope_dim", "original", "low", "high"), [(64, 65536, 15, 25), (32, 256, 0, 5)]
)
def test_yarn_interpolates_between_the_published_pairs(
    rope_dim: int, original: int, low: int, high: int
) -> None:
    plain = rope_frequencies(rope_dim, 160000, None)
    ratio = rope_frequencies(rope_dim, 160000, (16, 32, 1, original)) / plain
    np.testing.assert_allclose(ratio[: low + 1], 1)
    np.testing.assert_allclose(ratio[high:], 1 / 16)
    inside = ratio[low : high + 1]
    assert (np.diff(inside) < 0).all()


def test_the_flat_config_gives_the_layer_roles(real_config: OracleConfig) -> None:
    owners = [real_config.kv_owner(layer) for layer in (2, 7, 8, 19, 20, 39)]
    assert owners == [2, 2, 8, 14, 20, 20]
    assert len(real_config.compress_ratios) == 43
    assert real_config.norm_topk_prob
    assert real_config.gate_temp == 1.0


def test_missing_draft_ratios_are_zero() -> None:
    config = OracleConfig.load(DIRECTORY / "steady_mtp" / "config.json")
    assert len(config.compress_ratios) == config.num_hidden_layers + 3
    assert config.compress_ratios[-3:] == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (" The", "the"),
        ("Café", "cafe"),
        ("ﬁn", "fin"),
        (" ", " "),
        ("\n\t ", " "),
        (" a\n\nb ", "a b"),
        ("Ⅷ", "viii"),
    ],
)
def test_token_texts_are_normalised(text: str, normal: str) -> None:
    assert normalised_text(text) == normal


def test_compressed_ids_follow_first_appearance() -> None:
    texts = ["the", " The", "\ufffd", "cat", "\ufffd", "CAT", ""]
    tokens = ["the", "ĠThe", "<a>", "cat", "<b>", "CAT", ""]
    assert compressed_token_ids(texts, tokens) == [0, 0, 1, 2, 3, 2, 4]


def test_a_tokenizer_gives_the_map_and_a_wrong_size_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    vocab = {"<unk>": 0, "a": 1, "A": 2, "b": 3}
    Tokenizer(models.WordLevel(vocab, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    assert token_map(tmp_path, 3).tolist() == [0, 1, 1, 2]
    with pytest.raises(InputError, match="the tokenizer gives 3"):
        token_map(tmp_path, 4)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        token_map(tmp_path / "nowhere", 3)
