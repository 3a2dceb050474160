"""POST /v1/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.serve.bridge import SequenceJob
from engine.serve.errors import bad_request
from engine.serve.event_stream import DONE, event
from engine.serve.fields import Fields
from engine.serve.logprobs import TokenLogprob
from engine.serve.requests import CompletionBody, parse_completion
from engine.serve.service import Piece, Service
from engine.serve.usage import Usage

__all__ = ["CompletionAnswer", "completion_answer"]


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """A checked completion call, ready to run as a stream or as one body."""

    service: Service
    body: CompletionBody
    jobs: tuple[SequenceJob, ...]
    head: dict[str, Any]
    usage: Usage

    async def events(self) -> AsyncIterator[bytes]:
        """Chunks of a stream: one a token, then the usage if asked for, then the end."""
        offsets = [0] * len(self.jobs)
        async with self.service.open(self.jobs) as call:
            async for piece in self.service.pieces(call, self.jobs):
                self.usage.take(piece.index, piece.facts)
                choice = {
                    "index": piece.index,
                    "text": piece.text,
                    "logprobs": self._stream_logprobs(piece, offsets[piece.index]),
                    "finish_reason": piece.finish_reason,
                }
                offsets[piece.index] += len(piece.text)
                chunk = {**self.head, "choices": [choice]}
                if self.body.stream.usage_in_every_chunk:
                    chunk["usage"] = self.usage.body()
                yield event(chunk)
                self.usage.mark_sent()
        if self.body.stream.include_usage:
            yield event({**self.head, "choices": [], **self.usage.tail()})
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """The answer without a stream."""
        pieces: list[list[Piece]] = [[] for _ in self.jobs]
        async with self.service.open(self.jobs) as call:
            async for piece in self.service.pieces(call, self.jobs):
                self.usage.take(piece.index, piece.facts)
                pieces[piece.index].append(piece)
        choices = [
            self._choice(job, index, of_one)
            for index, (job, of_one) in enumerate(zip(self.jobs, pieces, strict=True))
        ]
        return {**self.head, "choices": choices, **self.usage.tail()}

    def _choice(self, job: SequenceJob, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        entries: list[tuple[int, TokenLogprob | None]] = []
        if self.body.echo:
            text = self.service.text.decode(job.token_ids, skip_special_tokens=False) + text
            entries.append((job.token_ids[0], None))
            entries += [(entry.token_id, entry) for entry in pieces[0].prompt_logprobs]
        entries += [(piece.token_id, piece.logprob) for piece in pieces]
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(entries, 0),
            "finish_reason": pieces[-1].finish_reason,
        }

    def _stream_logprobs(self, piece: Piece, offset: int) -> dict[str, Any] | None:
        return self._logprobs([(piece.token_id, piece.logprob)], offset)

    def _logprobs(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], offset: int
    ) -> dict[str, Any] | None:
        """OpenAI's four parallel lists; the first prompt token has no log-probability."""
        if self.body.sampling.num_logprobs is None:
            return None
        tokens = [self.service.text.piece(token) for token, _ in entries]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob if entry else None for _, entry in entries],
            "top_logprobs": [self._top(entry) if entry else None for _, entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Text -> logprob, best first; of ids with the same text the best one counts."""
        top: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            top.setdefault(self.service.text.piece(token), logprob)
        return top


def completion_answer(
    service: Service, fields: Fields, *, tells_facts: bool = False
) -> CompletionAnswer:
    """Check a call.

    Raises:
        ApiError: 400 or 404.
    """
    body = parse_completion(fields)
    model = service.check_model(body.model)
    scores = body.echo and body.sampling.num_logprobs is not None
    prompts = [
        service.text.encode(prompt) if isinstance(prompt, str) else prompt
        for prompt in body.prompts
    ]
    if len(prompts) > service.bridge.capacity:
        raise bad_request(
            f"{len(prompts)} prompts in one call; this server holds {service.bridge.capacity}",
            "prompt",
        )
    jobs = tuple(
        service.job(ids, body.sampling, index=index, scores=scores)
        for index, ids in enumerate(prompts)
    )
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }
    usage = Usage(sum(map(len, prompts)), len(jobs), tells_facts)
    return CompletionAnswer(service, body, jobs, head, usage)
