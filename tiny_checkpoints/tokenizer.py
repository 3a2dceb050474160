"""A small byte-level BPE tokenizer in the `tokenizers` file format, made without that library."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tiny_checkpoints.tokenizer_text import TEXT

__all__ = [
    "SPECIAL_TOKENS",
    "TinyTokenizer",
    "build_tokenizer",
    "compressed_vocab_size",
    "token_map",
]

_FIRST_TOKENS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
SPECIAL_TOKENS = (
    "<｜deepseek_image｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜System｜>",
)
# The words that GPT-2's splitting pattern finds in ASCII text without apostrophes.
_WORDS = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+")
_ONE_SPACE = "\ue000"


@dataclass(frozen=True, slots=True)
class TinyTokenizer:
    """A vocabulary: three special ids, 256 bytes, merges, and the other specials at the end.

    Attributes:
        tokens: raw token text by id (bytes in GPT-2's printable alphabet).
        merges: pairs in rank order.
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    def id_of(self, token: str) -> int:
        """The id of a raw token; ValueError if absent."""
        return self.tokens.index(token)

    def as_json(self) -> dict[str, Any]:
        """The content of tokenizer.json."""
        byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _added_token(self.id_of(text), text) for text in (*_FIRST_TOKENS, *SPECIAL_TOKENS)
            ],
            "normalizer": None,
            "pre_tokenizer": {**byte_level, "add_prefix_space": False},
            "post_processor": None,
            "decoder": {**byte_level, "add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: number for number, token in enumerate(self.tokens)},
                "merges": [list(pair) for pair in self.merges],
            },
        }

    def text_of(self, token_id: int) -> str:
        """What decoding this one id gives; bytes that are no UTF-8 give U+FFFD."""
        token = self.tokens[token_id]
        if token in _FIRST_TOKENS or token in SPECIAL_TOKENS:
            return token
        byte_of = {char: byte for byte, char in enumerate(_byte_alphabet())}
        return bytes(byte_of[char] for char in token).decode("utf-8", errors="replace")


def build_tokenizer(vocab_size: int) -> TinyTokenizer:
    """The tokenizer with exactly `vocab_size` ids.

    Raises:
        ValueError: the text does not yield enough merges, or the size leaves room for none.
    """
    alphabet = _byte_alphabet()
    num_merges = vocab_size - len(_FIRST_TOKENS) - len(alphabet) - len(SPECIAL_TOKENS)
    if num_merges < 1:
        raise ValueError(f"a vocabulary of {vocab_size} leaves no room for a merge")
    merges = _count_merges(num_merges)
    joined = tuple(left + right for left, right in merges)
    return TinyTokenizer((*_FIRST_TOKENS, *alphabet, *joined, *SPECIAL_TOKENS), merges)


def token_map(tokenizer: TinyTokenizer) -> list[int]:
    """Token id -> compressed id of the Engram hash (model.md §2.9), by first appearance."""
    seen: dict[str, int] = {}
    compressed = []
    for token_id, token in enumerate(tokenizer.tokens):
        text = tokenizer.text_of(token_id)
        key = token if "\ufffd" in text else _normalised(text) or text
        compressed.append(seen.setdefault(key, len(seen)))
    return compressed


def compressed_vocab_size(tokenizer: TinyTokenizer) -> int:
    """How many different keys the token map of model.md §2.9 knows."""
    return max(token_map(tokenizer)) + 1


def _normalised(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    bare = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
    spaced = re.sub(r"[ \t\r\n]+", " ", bare.lower())
    return (_ONE_SPACE if spaced == " " else spaced).strip().replace(_ONE_SPACE, " ")


def _byte_alphabet() -> tuple[str, ...]:
    """One printable character a byte: itself where printable, else the next from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, next_code = [], 0x100
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(next_code))
            next_code += 1
    return tuple(alphabet)


def _count_merges(num_merges: int) -> tuple[tuple[str, str], ...]:
    """Merge the most frequent pair again and again; ties go to the smaller pair of strings."""
    alphabet = _byte_alphabet()
    words: Counter[tuple[str, ...]] = Counter(
        tuple(alphabet[byte] for byte in word.encode()) for word in _WORDS.findall(TEXT)
    )
    merges: list[tuple[str, str]] = []
    known = set(alphabet)
    while len(merges) < num_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            raise ValueError(f"the text yields only {len(merges)} of {num_merges} merges")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        words = Counter({_merged(word, best): count for word, count in words.items()})
        if best[0] + best[1] not in known:
            known.add(best[0] + best[1])
            merges.append(best)
    return tuple(merges)


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            out.append(pair[0] + pair[1])
            position += 2
        else:
            out.append(word[position])
            position += 1
    return tuple(out)


def _added_token(token_id: int, text: str) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
