"""Between text and token ids, token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.serve.errors import bad_request

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Detokeniser", "StopText", "Text"]

_INCOMPLETE = "\ufffd"


class Text:
    """The checkpoint's tokenizer; without one, ids still work and every text is empty."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer: Tokenizer | None = None
        file = checkpoint / "tokenizer.json"
        if file.is_file():
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(file))
        config = checkpoint / "tokenizer_config.json"
        self.config: dict[str, Any] = {}
        if config.is_file():
            self.config = json.loads(config.read_text(encoding="utf-8"))

    @property
    def is_known(self) -> bool:
        """Whether there is a tokenizer."""
        return self._tokenizer is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Ids of a text.

        Raises:
            ApiError: the checkpoint has no tokenizer.
        """
        if self._tokenizer is None:
            raise bad_request("this checkpoint has no tokenizer.json: send token ids", "prompt")
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; empty without a tokenizer."""
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def piece(self, token_id: int) -> str:
        """Text of one token as logprobs show it; its number without a tokenizer."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        return self.decode([token_id], skip_special_tokens=False)


class Detokeniser:
    """Text that each new token adds; an unfinished code point waits for the rest.

    The pieces and the flush joined are the text of all tokens: a decoder shows an unfinished
    code point as one replacement character at the end, and nothing before it can change any more.
    """

    def __init__(self, text: Text, *, skip_special_tokens: bool) -> None:
        self._text = text
        self._skip = skip_special_tokens
        self._context: list[int] = []  # shown whole; what follows is decoded after them
        self._fresh: list[int] = []
        self._num_shown = 0  # characters of context and fresh that are out

    def add(self, token_id: int) -> str:
        """What the token adds, empty where its character is not complete."""
        self._fresh.append(token_id)
        whole = self._decode([*self._context, *self._fresh])
        if whole.endswith(_INCOMPLETE):
            return self._show(whole[:-1])
        piece = self._show(whole)
        self._context, self._fresh = self._fresh, []
        self._num_shown = len(self._decode(self._context))
        return piece

    def flush(self) -> str:
        """What is still held back when no token follows."""
        return self._show(self._decode([*self._context, *self._fresh]))

    def _show(self, upto: str) -> str:
        piece = upto[self._num_shown :]
        self._num_shown = max(self._num_shown, len(upto))
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        return self._text.decode(ids, skip_special_tokens=self._skip)


class StopText:
    """Ends a text at the first stop text; what could become one is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def add(self, piece: str, *, is_last: bool) -> tuple[str, bool]:
        """(text to show, whether a stop text was met)."""
        if not self._stop:
            return piece, False
        self._held += piece
        places = [place for text in self._stop if (place := self._held.find(text)) >= 0]
        if places:
            return self._release(min(places)), True
        keep = 0 if is_last else max(self._overlap(text) for text in self._stop)
        return self._release(len(self._held) - keep), False

    def _overlap(self, text: str) -> int:
        """Length of the longest end of the held text that starts a stop text."""
        longest = min(len(text) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(text[:size])), 0)

    def _release(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        return shown
