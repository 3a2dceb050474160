"""One request to /v1/completions or /v1/chat/completions, and the record of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.errors import MissingEvidenceError, UsageError
from harness.run.client.connection import (
    Address,
    Answer,
    ExchangeError,
    exchange,
    parse_address,
)
from harness.run.client.reply import StreamReply

__all__ = ["CompletionClient", "CompletionRequest"]


_SHORT_STALL_S = 30.0
# Asks a server of this project for what it knows of a request; all others ignore it.
_FACTS_HEADER = "X-Neuron-Harness-Facts"
# Of these a record says null where the server does not tell.
_TOLD = ("bucket", "padding_share", "num_prefill_steps", "num_decode_steps")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What is asked for: a prompt by its ids, exactly so many tokens, greedily."""

    prompt_ids: Sequence[int]
    max_tokens: int
    ignore_eos: bool = True


class CompletionClient:
    """Sends streaming requests, each on a connection of its own.

    Args:
        url: base URL of an OpenAI-compatible server.
        model: name to send; empty takes the server's first.
        api_key: sent as a bearer token where not empty.
        stall_s: longest time without a byte before a request counts as failed.
    """

    def __init__(
        self, url: str, *, model: str = "", api_key: str = "", stall_s: float = 600.0
    ) -> None:
        self.address: Address = parse_address(url)
        self.model = model
        self._api_key = api_key
        self._stall_s = stall_s

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET.

        Raises:
            ExchangeError: the server cannot be reached.
        """
        parts: list[bytes] = []
        answer = Answer()
        await exchange(
            self.address,
            self._head("GET", path, 0),
            answer,
            lambda _, content: parts.append(content),
            stall_s=min(self._stall_s, _SHORT_STALL_S),
        )
        return answer.status, b"".join(parts)

    async def facts(self) -> dict[str, Any]:
        """The served model's entry of /v1/models; takes its name where none was given.

        Raises:
            MissingEvidenceError: no server, or none that lists a model.
            UsageError: the given model is not among those served.
        """
        try:
            status, body = await self.get("/v1/models")
            models = json.loads(body)["data"] if status == 200 else []
        except (ExchangeError, ValueError, KeyError, TypeError) as error:
            raise MissingEvidenceError(f"{self.address.netloc}/v1/models: {error}") from error
        if not models:
            message = f"{self.address.netloc}/v1/models: status {status}, no model listed"
            raise MissingEvidenceError(message)
        by_name = {model["id"]: model for model in models}
        self.model = self.model or models[0]["id"]
        if self.model not in by_name:
            raise UsageError(f"model {self.model!r} is not served; there is {', '.join(by_name)}")
        entry: dict[str, Any] = by_name[self.model]
        return entry

    async def complete(
        self, request: CompletionRequest, *, t_arr_ns: int | None = None
    ) -> dict[str, Any]:
        """Run one request; whatever happens becomes a record as SweepPoint.requests holds them."""
        body = json.dumps(
            {
                "model": self.model,
                "prompt": list(request.prompt_ids),
                "repetition_penalty": 1.0,
                "max_tokens": request.max_tokens,
                "logprobs": None,
                "stream": True,
                "stream_options": {"include_usage": True},
                "ignore_eos": request.ignore_eos,
                "temperature": 0.0,
            }
        ).encode()
        reply, answer, plain = StreamReply(), Answer(), bytearray()

        def receive(answer: Answer, content: bytes) -> None:
            if answer.status == 200:
                reply.take(answer.t_last_read_ns, content)
            else:
                plain.extend(content)

        message = self._head("POST", "/v1/completions", len(body)) + body
        try:
            await exchange(self.address, message, answer, receive, stall_s=self._stall_s)
            reply.close()
            if answer.status != 200:
                reply.error = f"HTTP {answer.status}: {_error_text(bytes(plain))}"
        except ExchangeError as error:
            reply.error = reply.error or str(error)
        return _record(request, answer, reply, t_arr_ns)

    def _head(self, method: str, path: str, num_bytes: int) -> bytes:
        lines = [
            f"{method} {self.address.prefix}{path} HTTP/1.1",
            f"Host: {self.address.netloc}",
            "Connection: close",
            "Accept-Encoding: identity",
            f"{_FACTS_HEADER}: 1",
        ]
        if num_bytes:
            lines += ["Content-Type: application/json", f"Content-Length: {num_bytes}"]
        if self._api_key:
            lines.append(f"Authorization: Bearer {self._api_key}")
        return "\r\n".join([*lines, "", ""]).encode()


def _record(
    request: CompletionRequest, answer: Answer, reply: StreamReply, t_arr_ns: int | None
) -> dict[str, Any]:
    """What is known, null where it is not; `harness.core.latency` judges it."""
    usage = reply.usage or {}
    record: dict[str, Any] = {
        "t_arr_ns": t_arr_ns,
        "t_send_ns": answer.t_send_ns,
        "t_last_read_ns": answer.t_last_read_ns or None,
        "token_ns": reply.token_ns,
        "prompt_len": usage.get("prompt_tokens"),
        "prompt_len_requested": len(request.prompt_ids),
        "num_tokens": reply.num_by_usage if reply.usage else len(reply.token_ns),
        "num_requested": request.max_tokens,
        "count_source": "usage" if reply.usage else "chunks",
        "has_loose_counts": reply.has_loose_counts,
        "ignore_eos": request.ignore_eos,
        "finish_reason": reply.finish_reason or None,
        "text": "".join(reply.texts),
        **{name: reply.facts.get(name) for name in _TOLD},
    }
    if "counters" in reply.facts:
        record["counters"] = dict(reply.facts["counters"])
    if reply.error:
        record["error"] = reply.error
    return record


def _error_text(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:100].decode("utf-8", errors="replace")
