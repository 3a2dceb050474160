"""Engram hashing against the published check values (model.md §2.9, §6)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.config.model import EngramConfig
from engine.config.parse import load_model_config
from engine.engram.hashing import EngramHash
from engine.engram.primes import engram_primes
from engine.engram.token_map import load_token_map, normalise_token
from harness.core.errors import InputError
from tests.engine.oracle import copied_checkpoint

_REAL = EngramConfig((1, 14), 4, 8, 256, 16_000_000, 2, 99092, (384006168, 384016682))
_IDENTITY = np.arange(99092, dtype=np.int64)

_LAYER_1 = (
    "6961830 31143904 34796895 48021142 75858929 90471933 97778503 125113896 "
    "134700989 153834998 174087251 186734152 196247399 209004353 228140036 243023555 "
    "264676428 287408211 303047881 310868016 326748484 350569360 357435863 372961338"
)


def test_primes_of_the_real_model() -> None:
    primes = engram_primes(_REAL)
    assert primes[0][0] == (
        16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
    )  # fmt: skip
    assert primes[1][2][-1] == 16000889
    assert tuple(sum(map(sum, layer)) for layer in primes) == _REAL.num_embeddings


def test_primes_of_the_tiny_models() -> None:
    tiny = EngramConfig((1, 4), 4, 2, 32, 64, 2, 256, (462, 630))
    assert engram_primes(tiny) == (
        ((67, 71), (73, 79), (83, 89)),
        ((97, 101), (103, 107), (109, 113)),
    )


def test_row_ids_of_the_published_vector() -> None:
    """Compressed ids newest first: 5, 7, 9, 11."""
    rows = EngramHash(_REAL, _IDENTITY).rows([11, 9, 7], [5])
    assert rows.shape == (2, 1, 24)
    assert rows[0, 0].tolist() == [int(text) for text in _LAYER_1.split()]
    assert (rows[1, 0, 0], rows[1, 0, -1]) == (937800, 370806320)


def test_what_lies_before_the_sequence_is_the_pad_token() -> None:
    engram = EngramHash(_REAL, _IDENTITY)
    assert np.array_equal(engram.rows([], [40])[:, 0], engram.rows([2, 2, 2], [40])[:, 0])
    assert not np.array_equal(engram.rows([], [40]), engram.rows([3], [40]))


def test_rows_do_not_depend_on_how_the_tokens_are_cut() -> None:
    engram = EngramHash(_REAL, _IDENTITY)
    ids = np.random.default_rng(5).integers(0, 99092, 20).tolist()
    whole = engram.rows([], ids)
    for cut in (1, 2, 3, 7):
        parts = [engram.rows(ids[max(0, at - 3) : at], ids[at : at + cut])
                 for at in range(0, 20, cut)]  # fmt: skip
        assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" ", " "),
        (" \t\n ", " "),
        ("  Été\r\n", "ete"),
        ("A  b", "a b"),
        ("Ｆｕｌｌ", "full"),
        ("ﬁ", "fi"),
        ("", ""),
    ],
)
def test_normalisation_of_tokens(text: str, expected: str) -> None:
    assert normalise_token(text) == expected


def _tokenizer_file(target: Path, vocabulary: list[str]) -> None:
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import WordLevel

    vocab = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=vocabulary[0]))
    tokenizer.decoder = ByteLevel()
    tokenizer.save(str(target))


def test_the_map_of_a_tokenizer_numbers_keys_by_first_appearance(tmp_path: Path) -> None:
    copy = copied_checkpoint("long", tmp_path)
    (copy / "engram_token_map.json").unlink()
    # "Ġ" is a space and "Ã" half a character in byte-level alphabets.
    _tokenizer_file(copy / "tokenizer.json", ["the", "The", "ĠTHE", "Ġ", "ÃĠ", "Ã", "a"])
    values = json.loads((copy / "config.json").read_text())
    values["text_config"]["engram_compressed_vocab_size"] = 5
    (copy / "config.json").write_text(json.dumps(values))
    mapped = load_token_map(copy, load_model_config(copy))
    assert mapped[:7].tolist() == [0, 0, 0, 1, 2, 3, 4]


def test_a_map_of_another_size_is_refused(tmp_path: Path) -> None:
    copy = copied_checkpoint("long", tmp_path)
    config = load_model_config(copy)
    file = copy / "engram_token_map.json"
    file.write_text(json.dumps([0] * 512))
    with pytest.raises(InputError, match="engram_compressed_vocab_size=256"):
        load_token_map(copy, config)
    file.write_text(json.dumps(list(range(256))))
    with pytest.raises(InputError, match="each of 512 token ids"):
        load_token_map(copy, config)
    file.write_text('{"0": 1}')
    with pytest.raises(InputError, match="a list of ids"):
        load_token_map(copy, config)
    file.unlink()
    with pytest.raises(InputError, match=r"need tokenizer\.json or engram_token_map\.json"):
        load_token_map(copy, config)
