"""From a checked request to pieces of text: the one path all endpoints share."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.serve.bridge import Call, EngineBridge, SequenceJob, TokenEvent
from engine.serve.errors import ApiError, bad_request
from engine.serve.logprobs import TokenLogprob
from engine.serve.metrics import ServerMetrics
from engine.serve.requests import Sampling
from engine.serve.text import Detokeniser, StopText, Text

__all__ = ["Piece", "Service"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of one sequence, ready to be sent.

    Attributes:
        text: what it adds; may be empty.
        finish_reason: on the last token's piece only.
        facts: of the engine, on the piece of a last token that the engine itself ended with.
    """

    index: int
    token_id: int
    text: str
    finish_reason: str | None
    logprob: TokenLogprob | None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    facts: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Output:
    """One sequence's text as it grows, and its times."""

    detokeniser: Detokeniser
    stop: StopText
    t_start_ns: int
    first_ns: int = 0
    num_tokens: int = 0
    is_over: bool = field(default=False)


class Service:
    """What the endpoints use: the engine's thread, the tokenizer, the metrics.

    Args:
        model_names: accepted in `model`; the first is what answers say.
    """

    def __init__(
        self,
        bridge: EngineBridge,
        text: Text,
        metrics: ServerMetrics,
        model_names: Sequence[str],
    ) -> None:
        self.bridge = bridge
        self.text = text
        self.metrics = metrics
        self.model_names = tuple(model_names)
        self.created = int(time.time())

    @property
    def max_model_len(self) -> int:
        """Prompt plus output tokens of one sequence."""
        return self.bridge.engine.limits.max_model_len

    def check_model(self, name: str) -> str:
        """The name to answer with.

        Raises:
            ApiError: 404, this server does not have it.
        """
        if name and name not in self.model_names:
            known = ", ".join(self.model_names)
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; there is {known}",
                param="model",
                code="model_not_found",
            )
        return name or self.model_names[0]

    def job(
        self, token_ids: Sequence[int], sampling: Sampling, *, index: int = 0, scores: bool = False
    ) -> SequenceJob:
        """A sequence the engine can carry out.

        Raises:
            ApiError: 400, ids outside the vocabulary or more tokens than fit.
        """
        self._check_ids(token_ids)
        room = self.max_model_len - len(token_ids)
        if room < max(1, sampling.max_tokens):
            raise bad_request(
                f"the prompt has {len(token_ids)} tokens and {max(1, sampling.max_tokens)} more "
                f"are asked for; this model's context holds {self.max_model_len}",
                "max_tokens" if room > 0 else "prompt",
            )
        sampling = replace(sampling, max_tokens=sampling.max_tokens or room)
        limits = self.bridge.engine.limits
        needed = limits.pages_for(len(token_ids) + sampling.max_tokens)
        if needed > limits.num_pages - 1:
            raise bad_request(
                f"the request needs {needed} KV pages, the pool has {limits.num_pages - 1}",
                "max_tokens",
            )
        seed = secrets.randbits(63) if sampling.seed is None else _seed(sampling.seed, index)
        return SequenceJob(tuple(token_ids), sampling, seed, scores)

    def open(self, jobs: Sequence[SequenceJob]) -> Call:
        """A call for `pieces`, to be entered."""
        return self.bridge.call(jobs, self._count_cut_short)

    async def pieces(self, call: Call, jobs: Sequence[SequenceJob]) -> AsyncIterator[Piece]:
        """Pieces of an entered call as its tokens come; metrics are kept on the way."""
        now_ns = time.perf_counter_ns()
        outputs = [
            _Output(
                Detokeniser(self.text, skip_special_tokens=job.sampling.skip_special_tokens),
                StopText(job.sampling.stop),
                now_ns,
            )
            for job in jobs
        ]
        self.metrics.prompt_tokens.inc(sum(len(job.token_ids) for job in jobs))
        async for event in call:
            output = outputs[event.index]
            for piece in self._pieces(output, event):
                output.is_over = piece.finish_reason is not None
                yield piece
                if output.is_over and not event.finish_reason:
                    call.cancel(event.index)
                if output.is_over:
                    break

    def _pieces(self, output: _Output, event: TokenEvent) -> list[Piece]:
        pieces = []
        for place, token in enumerate(event.token_ids):
            is_last = bool(event.finish_reason) and place == len(event.token_ids) - 1
            text = output.detokeniser.add(token)
            if is_last:
                text += output.detokeniser.flush()
            text, is_stopped = output.stop.add(text, is_last=is_last)
            reason = "stop" if is_stopped else event.finish_reason if is_last else None
            output.num_tokens += 1
            output.first_ns = output.first_ns or event.token_ns
            pieces.append(
                Piece(
                    index=event.index,
                    token_id=token,
                    text=text,
                    finish_reason=reason,
                    logprob=event.logprobs[place] if event.logprobs else None,
                    prompt_logprobs=event.prompt_logprobs if place == 0 else (),
                    facts=event.facts if is_last else None,
                )
            )
            self.metrics.generation_tokens.inc()
            if reason:
                self._count_ended(output, event, reason)
                break
        return pieces

    def _count_ended(self, output: _Output, event: TokenEvent, reason: str) -> None:
        self.metrics.sequences.labels(reason).inc()
        self.metrics.ttft.observe((output.first_ns - output.t_start_ns) / 1e9)
        if output.num_tokens > 1:
            span_ns = event.token_ns - output.first_ns
            self.metrics.tpot.observe(span_ns / 1e9 / (output.num_tokens - 1))

    def _count_cut_short(self, reason: str, count: int) -> None:
        self.metrics.sequences.labels(reason).inc(count)

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise bad_request("the prompt is empty: it needs at least one token", "prompt")
        vocab_size = self.bridge.engine.vocab_size
        for position, token in enumerate(token_ids):
            if not 0 <= token < vocab_size:
                raise bad_request(
                    f"the prompt's token {position} is {token}: ids lie in 0..{vocab_size - 1}",
                    "prompt",
                )


def _seed(seed: int, index: int) -> int:
    """A seed of any size and sign, another one for each sequence of a call."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8], "big")
