"""The tiny tokenizer as the `tokenizers` library reads it."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tiny_checkpoints.tokenizer import SPECIAL_TOKENS, build_tokenizer, compressed_vocab_size


def _derived_size(tokenizer: Tokenizer) -> int:
    """model.md §2.9 step 1, on the library's own decoding."""
    keys = set()
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if "\ufffd" in text:
            keys.add(tokenizer.id_to_token(token_id))
            continue
        folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
        folded = "".join(c for c in folded if unicodedata.category(c) != "Mn").lower()
        folded = re.sub("[ \t\r\n]+", " ", folded)
        keys.add((folded if folded == " " else folded.strip()) or text)
    return len(keys)


def test_the_configured_vocabulary_size_is_the_derived_one(tiny_a: Path) -> None:
    config = json.loads((tiny_a / "config.json").read_text("utf-8"))["text_config"]
    tokenizer = Tokenizer.from_file(str(tiny_a / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"] == 512
    assert config["engram_compressed_vocab_size"] == _derived_size(tokenizer)
    assert config["engram_compressed_vocab_size"] < 512  # case and spaces do fold


@pytest.mark.parametrize("vocab_size", [512, 1024])
def test_the_library_gives_every_id_the_same_text(vocab_size: int) -> None:
    ours = build_tokenizer(vocab_size)
    library = Tokenizer.from_str(json.dumps(ours.as_json(), ensure_ascii=False))
    assert [library.id_to_token(i) for i in range(vocab_size)] == list(ours.tokens)
    decoded = [library.decode([i], skip_special_tokens=False) for i in range(vocab_size)]
    assert decoded == [ours.text_of(i) for i in range(vocab_size)]
    assert _derived_size(library) == compressed_vocab_size(ours)


def test_text_survives_a_round_trip_and_words_are_merged(tiny_a: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_a / "tokenizer.json"))
    text = "The reference reads tokens, 128 at a time: naïve 漢字 <｜User｜>ok"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert len(ids) < len(text.encode())
    assert tokenizer.token_to_id("<｜User｜>") in ids


def test_special_ids_are_where_the_configuration_says(tiny_a: Path) -> None:
    config = json.loads((tiny_a / "config.json").read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(tiny_a / "tokenizer.json"))
    assert tokenizer.token_to_id("<｜begin▁of▁sentence｜>") == config["bos_token_id"] == 0
    assert tokenizer.token_to_id("<｜end▁of▁sentence｜>") == config["eos_token_id"] == 1
    noise = config["text_config"]["dspark_noise_token_id"]
    assert tokenizer.id_to_token(noise) == "<｜System｜>"
    assert tokenizer.id_to_token(config["image_token_id"]) == "<｜deepseek_image｜>"
    assert all(tokenizer.token_to_id(text) is not None for text in SPECIAL_TOKENS)


def test_a_vocabulary_without_room_or_beyond_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        build_tokenizer(273)
    with pytest.raises(ValueError, match="yields only"):
        build_tokenizer(100_000)
