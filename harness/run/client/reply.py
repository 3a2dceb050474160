"""What a stream of OpenAI chunks says: which chunk brought how many tokens, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from harness.run.client.events import EventReader

__all__ = ["FACTS_FIELD", "StreamReply"]

# Where this project's server puts what it knows, if the request's head asks for it.
FACTS_FIELD = "neuron_harness"


@dataclass(slots=True)
class StreamReply:
    """Takes the body of one streaming answer with the stamps of its reads.

    A chunk counts the tokens it names (logprobs, token ids, a running usage), else one if it
    carries text, be it empty. A delta of the role alone, and a chunk that only repeats how the
    stream ended, carry none.

    Attributes:
        error: why this is no good answer; empty while it is.
        token_ns: one stamp a token.
        has_loose_counts: some chunk's tokens could not be told and count as one.
        facts: what a server of this project knows of the request; empty from all others.
    """

    error: str = ""
    token_ns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, Any] | None = None
    is_done: bool = False
    has_loose_counts: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    _reader: EventReader = field(default_factory=EventReader)
    _num_by_usage: int = 0
    _last_is_empty_end: bool = False

    def take(self, now_ns: int, content: bytes) -> None:
        """Bytes of one read."""
        for data in self._reader.feed(content):
            if self.error or self.is_done:
                return
            self._take_event(now_ns, data)

    def close(self) -> None:
        """Judge what the whole stream can tell; called when the body has ended."""
        if self.error:
            return
        if not self.is_done:
            self.error = "the stream ended without [DONE]"
        elif self._last_is_empty_end and len(self.token_ns) == self.num_by_usage + 1:
            # An extra chunk that only says how it ended looks like an empty last token; the
            # server's own count tells them apart.
            self.token_ns.pop()
        if self.usage is not None and len(self.token_ns) != self.num_by_usage:
            self.has_loose_counts = True

    @property
    def num_by_usage(self) -> int:
        """The server's count of generated tokens; -1 without one."""
        count = (self.usage or {}).get("completion_tokens")
        return count if isinstance(count, int) else -1

    def _take_event(self, now_ns: int, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.is_done = True
            return
        try:
            body = json.loads(data)
            if "error" in body:
                error = body["error"]
                message = error.get("message") if isinstance(error, dict) else error
                self.error = f"the server said: {message}"
                return
            choices = body.get("choices") or []
            usage = body.get("usage")
            num_before = self._num_by_usage
            if FACTS_FIELD in body:
                self.facts = body[FACTS_FIELD]["sequences"][0] or {}
            if usage is not None:
                self.usage = usage
                self._num_by_usage = int(usage.get("completion_tokens", num_before))
            if choices:
                # A running usage tells a chunk's tokens; one that comes late tells them all.
                is_running = usage is not None and num_before == len(self.token_ns)
                counted = self._num_by_usage - num_before if is_running else None
                self._take_choice(now_ns, choices[0], counted)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            self.error = f"malformed event {data[:60]!r}: {error}"

    def _take_choice(self, now_ns: int, choice: dict[str, Any], counted: int | None) -> None:
        text = _text(choice)
        reason = choice.get("finish_reason")
        count = counted if counted is not None else _named_tokens(choice)
        if count is None:
            count = 0 if text is None else 1
        self._last_is_empty_end = bool(reason) and text == "" and count == 1
        self.token_ns.extend([now_ns] * count)
        if text:
            self.texts.append(text)
        if reason:
            self.finish_reason = reason


def _text(choice: dict[str, Any]) -> str | None:
    """The text a chunk carries; None where it is not a token's chunk."""
    if "delta" not in choice:
        text = choice.get("text")
        return text if isinstance(text, str) else None
    delta = choice["delta"]
    content = delta.get("content")
    if content is None:
        content = delta.get("reasoning_content")
    if content is None or (content == "" and "role" in delta):
        return None
    return str(content)


def _named_tokens(choice: dict[str, Any]) -> int | None:
    """How many tokens a chunk names, None where it names none."""
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        for key in ("tokens", "content"):
            if isinstance(logprobs.get(key), list):
                return len(logprobs[key])
    return None
