"""Token id -> compressed id, from a checkpoint's override file or its tokenizer."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.config.model import ModelConfig
from harness.core.errors import InputError

__all__ = ["load_token_map", "normalise_token"]

_ONE_SPACE = "\ue000"
_WHITESPACE = re.compile(r"[ \t\r\n]+")


def load_token_map(checkpoint: str | Path, config: ModelConfig) -> npt.NDArray[np.int64]:
    """The map [vocab_size] of a checkpoint with engram layers.

    `engram_token_map.json` (a JSON list, this project's extension) wins over `tokenizer.json`.

    Raises:
        InputError: neither file exists, or the map does not fit the configuration.
    """
    directory = Path(checkpoint)
    override = directory / "engram_token_map.json"
    tokenizer = directory / "tokenizer.json"
    if override.is_file():
        return _checked(override, _read_override(override), config)
    if tokenizer.is_file():
        return _checked(tokenizer, _from_tokenizer(tokenizer), config)
    remedy = "engram layers need tokenizer.json or engram_token_map.json beside config.json"
    raise InputError(directory, "tokenizer.json", "absent", remedy)


def normalise_token(text: str) -> str:
    """NFKC, NFD, strip accents, lower case, squeeze blanks, keep a lone space (model.md §2.9)."""
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    bare = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
    squeezed = _WHITESPACE.sub(" ", bare.lower())
    if squeezed == " ":
        squeezed = _ONE_SPACE
    return squeezed.strip().replace(_ONE_SPACE, " ")


def _read_override(file: Path) -> list[int]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(file, "JSON", str(error), "repair the file") from error
    if not isinstance(values, list) or not all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    ):
        raise InputError(file, "JSON", type(values).__name__, "a list of ids >= 0 is needed")
    return values


def _from_tokenizer(file: Path) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    ids: dict[str, int] = {}
    mapped = []
    for token_id in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        undecodable = "\ufffd" in text
        key = str(tokenizer.id_to_token(token_id)) if undecodable else normalise_token(text) or text
        mapped.append(ids.setdefault(key, len(ids)))
    return mapped


def _checked(file: Path, values: list[int], config: ModelConfig) -> npt.NDArray[np.int64]:
    assert config.engram is not None
    # A tokenizer may know fewer tokens than the padded vocabulary; those ids are never produced.
    if len(values) < config.vocab_size and file.name != "tokenizer.json":
        remedy = f"an entry for each of {config.vocab_size} token ids is needed"
        raise InputError(file, "length", len(values), remedy)
    distinct = max(values) + 1
    expected = config.engram.compressed_vocab_size
    if distinct != expected:
        remedy = f"config.json says engram_compressed_vocab_size={expected}"
        raise InputError(file, "number of compressed ids", distinct, remedy)
    padded = values + [0] * max(0, config.vocab_size - len(values))
    return np.asarray(padded[: config.vocab_size], dtype=np.int64)
