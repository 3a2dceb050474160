"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.chat import encode_chat
from engine.serve.bridge import SequenceJob
from engine.serve.event_stream import DONE, event
from engine.serve.fields import Fields
from engine.serve.logprobs import TokenLogprob
from engine.serve.requests import ChatBody, parse_chat
from engine.serve.service import Piece, Service
from engine.serve.usage import Usage

__all__ = ["ChatAnswer", "chat_answer"]


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A checked chat call, ready to run as a stream or as one body."""

    service: Service
    body: ChatBody
    job: SequenceJob
    head: dict[str, Any]
    usage: Usage

    async def events(self) -> AsyncIterator[bytes]:
        """The role, one chunk a token, then the usage if asked for, then the end."""
        head = {**self.head, "object": "chat.completion.chunk"}
        async with self.service.open([self.job]) as call:
            async for piece in self.service.pieces(call, [self.job]):
                if not self.usage.completion_tokens:
                    # With the first token, not before: clients take any delta for one.
                    yield event({**head, "choices": [_delta({"role": "assistant", "content": ""})]})
                self.usage.take(piece.index, piece.facts)
                choice = _delta({"content": piece.text}, self._logprobs([piece]))
                choice["finish_reason"] = piece.finish_reason
                chunk = {**head, "choices": [choice]}
                if self.body.stream.usage_in_every_chunk:
                    chunk["usage"] = self.usage.body()
                yield event(chunk)
                self.usage.mark_sent()
        if self.body.stream.include_usage:
            yield event({**head, "choices": [], **self.usage.tail()})
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """The answer without a stream."""
        pieces = []
        async with self.service.open([self.job]) as call:
            async for piece in self.service.pieces(call, [self.job]):
                self.usage.take(piece.index, piece.facts)
                pieces.append(piece)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(piece.text for piece in pieces)},
            "logprobs": self._logprobs(pieces),
            "finish_reason": pieces[-1].finish_reason,
        }
        return {**self.head, "choices": [choice], **self.usage.tail()}

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self.body.sampling.num_logprobs is None:
            return None
        return {"content": [self._entry(piece.logprob) for piece in pieces if piece.logprob]}

    def _entry(self, entry: TokenLogprob) -> dict[str, Any]:
        best = [self._named(token, logprob) for token, logprob in entry.top]
        return {**self._named(entry.token_id, entry.logprob), "top_logprobs": best}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.service.text.piece(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def chat_answer(service: Service, fields: Fields, *, tells_facts: bool = False) -> ChatAnswer:
    """Check a call.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse_chat(fields)
    model = service.check_model(body.model)
    turns = [(message.role, message.content) for message in body.messages]
    prompt = encode_chat(turns, thinking=body.thinking, effort=body.effort)
    # The encoding starts with its own bos; the tokenizer must not add another.
    ids = service.text.encode(prompt, add_special_tokens=False)
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
    }
    job = service.job(ids, body.sampling)
    return ChatAnswer(service, body, job, head, Usage(len(ids), 1, tells_facts))


def _delta(delta: dict[str, str], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
