"""Engram: compressed token ids, n-gram hashes (model.md §2.9)."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.core.errors import InputError
from references.oracle.config import OracleConfig

__all__ = ["EngramHash", "compressed_token_ids", "normalised_text", "token_map"]

Ids = npt.NDArray[np.int64]
_SPACE_MARK = "\ue000"
_REPLACEMENT = "\ufffd"


def normalised_text(text: str) -> str:
    """NFKC, NFD, without accents, lower case, white space as single spaces, stripped."""
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    bare = "".join(char for char in decomposed if unicodedata.category(char) != "Mn").lower()
    spaced = "".join(" " if char in " \t\r\n" else char for char in bare)
    while "  " in spaced:
        spaced = spaced.replace("  ", " ")
    # A token that is nothing but one space must survive the strip.
    marked = _SPACE_MARK if spaced == " " else spaced
    return marked.strip().replace(_SPACE_MARK, " ")


def compressed_token_ids(texts: Sequence[str], tokens: Sequence[str]) -> list[int]:
    """Token id -> compressed id, numbered in order of first appearance.

    Args:
        texts: each token decoded alone, specials kept.
        tokens: its raw string, the key where decoding gives U+FFFD.
    """
    seen: dict[str, int] = {}
    return [
        seen.setdefault(raw if _REPLACEMENT in text else normalised_text(text) or text, len(seen))
        for text, raw in zip(texts, tokens, strict=True)
    ]


def token_map(directory: Path, compressed_vocab_size: int) -> Ids:
    """From engram_token_map.json, or derived from tokenizer.json.

    Raises:
        InputError: neither file is there, or the number of compressed ids is another one.
    """
    override = directory / "engram_token_map.json"
    if override.exists():
        return np.array(json.loads(override.read_text()), dtype=np.int64)
    path = directory / "tokenizer.json"
    if not path.exists():
        raise InputError(directory, "tokenizer.json", None, "the Engram token map needs it")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    ids = range(tokenizer.get_vocab_size())
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
    mapped = compressed_token_ids(texts, [tokenizer.id_to_token(i) or "" for i in ids])
    if max(mapped) + 1 != compressed_vocab_size:
        raise InputError(
            directory / "config.json",
            "engram_compressed_vocab_size",
            compressed_vocab_size,
            f"the tokenizer gives {max(mapped) + 1}",
        )
    return np.array(mapped, dtype=np.int64)


class EngramHash:
    """Table rows of each position's 2-, 3-, ... N-grams, per Engram layer."""

    def __init__(self, config: OracleConfig, pad: int) -> None:
        self.pad = pad
        self.orders = range(2, config.engram_max_ngram_size + 1)
        unused = _primes_from(config.engram_vocab_size)
        self.primes: dict[int, list[list[int]]] = {}
        self.multipliers: dict[int, list[int]] = {}
        bound = (2**63 - 1) // config.engram_compressed_vocab_size // 2
        for layer in config.engram_layer_ids:
            self.primes[layer] = [
                [next(unused) for _ in range(config.engram_n_heads)] for _ in self.orders
            ]
            draws = np.random.default_rng(10007 * layer).integers(
                0, bound, size=config.engram_max_ngram_size, dtype=np.int64
            )
            self.multipliers[layer] = [int(draw) * 2 + 1 for draw in draws]

    def rows(self, layer: int, history: Sequence[int]) -> list[int]:
        """Table rows for the last position of `history` (compressed ids, oldest first)."""
        newest_first = list(history[::-1][: self.orders.stop - 1])
        newest_first += [self.pad] * (self.orders.stop - 1 - len(newest_first))
        mixed = newest_first[0] * self.multipliers[layer][0]
        rows, offset = [], 0
        for order, primes in zip(self.orders, self.primes[layer], strict=True):
            mixed ^= newest_first[order - 1] * self.multipliers[layer][order - 1]
            for prime in primes:
                rows.append(mixed % prime + offset)
                offset += prime
        return rows


def _primes_from(first: int) -> Iterator[int]:
    """Ascending primes >= first: what "next unseen prime" gives when every search starts there."""
    candidate = max(first, 2)
    while True:
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            yield candidate
        candidate += 1
