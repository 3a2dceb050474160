"""The routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.llm import LLM
from engine.serve.bridge import EngineBridge
from engine.serve.chats import ChatAnswer, chat_answer
from engine.serve.completions import CompletionAnswer, completion_answer
from engine.serve.errors import ApiError, bad_request, error_body
from engine.serve.event_stream import EventStream, WatchedAnswer
from engine.serve.facts import wants_facts
from engine.serve.fields import Fields, parse_body
from engine.serve.guard import Guard, read_body
from engine.serve.metrics import CONTENT_TYPE, ServerMetrics
from engine.serve.service import Service
from engine.serve.text import Text

__all__ = ["ServeOptions", "build_app"]

_LOG = logging.getLogger("neuron_harness.serve")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a server behaves.

    Attributes:
        model_names: accepted in requests; empty takes the checkpoint's path and its last part.
        max_queue: sequences that may wait beyond the engine's slots; 429 past it.
        api_key: empty lets everybody in.
        logs_prompts: whether log lines show the prompt's token ids.
    """

    model_names: tuple[str, ...] = ()
    max_queue: int = 256
    max_body_bytes: int = 8 * 2**20
    api_key: str = ""
    logs_prompts: bool = False


def build_app(
    engine: LLM, options: ServeOptions, *, on_failure: Callable[[], None] = lambda: None
) -> tuple[ASGIApp, EngineBridge]:
    """The ASGI application around an open engine, and the bridge to its thread.

    Args:
        on_failure: called on the loop when the engine has failed for good.
    """
    bridge = EngineBridge(engine, max_queue=options.max_queue, on_failure=on_failure)
    metrics = ServerMetrics(
        lambda: bridge.snapshot, lambda: bridge.num_in_flight, lambda: engine.totals
    )
    checkpoint = Path(engine.settings.checkpoint)
    names = options.model_names or tuple(
        dict.fromkeys((engine.settings.checkpoint, checkpoint.resolve().name))
    )
    endpoints = _Endpoints(Service(bridge, Text(checkpoint), metrics, names), options)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        bridge.open(asyncio.get_running_loop())
        try:
            yield
        finally:
            await asyncio.to_thread(bridge.close)

    routes = endpoints.routes()
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            ApiError: _api_error,  # type: ignore[dict-item]
            HTTPException: _http_error,  # type: ignore[dict-item]
            Exception: _unexpected,
        },
    )
    guard = Guard(
        app,
        metrics=metrics,
        api_key=options.api_key,
        max_body_bytes=options.max_body_bytes,
        endpoints=frozenset(route.path for route in routes),
    )
    return guard, bridge


class _Endpoints:
    def __init__(self, service: Service, options: ServeOptions) -> None:
        self._service = service
        self._options = options

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/tokenizer_info", self.tokenizer_info),
        ]

    async def health(self, _: Request) -> Response:
        failure = self._service.bridge.failure
        if failure is not None:
            raise ApiError(503, f"the engine failed: {failure}")
        return Response(status_code=200)

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(self._service.metrics.render(), media_type=CONTENT_TYPE)

    async def models(self, _: Request) -> Response:
        service = self._service
        data = [
            {
                "id": name,
                "object": "model",
                "created": service.created,
                "owned_by": "neuron-harness",
                "root": service.bridge.engine.settings.checkpoint,
                "max_model_len": service.max_model_len,
            }
            for name in service.model_names
        ]
        return JSONResponse({"object": "list", "data": data})

    async def completions(self, request: Request) -> ASGIApp:
        answer = completion_answer(
            self._service, await _fields(request), tells_facts=wants_facts(request.headers)
        )
        self._note(request, [job.token_ids for job in answer.jobs])
        return _response(request, answer)

    async def chat(self, request: Request) -> ASGIApp:
        answer = chat_answer(
            self._service, await _fields(request), tells_facts=wants_facts(request.headers)
        )
        self._note(request, [answer.job.token_ids])
        return _response(request, answer)

    async def tokenize(self, request: Request) -> Response:
        fields = await _fields(request)
        if fields.raw("prompt") is None:
            raise bad_request("prompt is absent: give the text", "prompt")
        special = fields.boolean("add_special_tokens", True)
        tokens = self._service.text.encode(fields.text("prompt"), add_special_tokens=special)
        return JSONResponse(
            {
                "tokens": list(tokens),
                "count": len(tokens),
                "max_model_len": self._service.max_model_len,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        tokens = (await _fields(request)).raw("tokens")
        vocab_size = self._service.bridge.engine.vocab_size
        good = isinstance(tokens, list) and all(
            isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab_size
            for token in tokens
        )
        if not good:
            raise bad_request(f"tokens must be a list of ids in 0..{vocab_size - 1}", "tokens")
        if not self._service.text.is_known:
            raise bad_request("this checkpoint has no tokenizer.json", "tokens")
        text = self._service.text.decode(tokens, skip_special_tokens=False)
        return JSONResponse({"prompt": text})

    async def tokenizer_info(self, _: Request) -> Response:
        if not self._service.text.is_known:
            raise ApiError(404, "this checkpoint has no tokenizer.json")
        facts = {"vocab_size": self._service.bridge.engine.vocab_size}
        return JSONResponse({**self._service.text.config, **facts})

    def _note(self, request: Request, prompts: Sequence[Sequence[int]]) -> None:
        facts: dict[str, Any] = request.scope["state"]["facts"]
        facts["prompt_tokens"] = sum(map(len, prompts))
        if self._options.logs_prompts:
            facts["prompts"] = [list(prompt) for prompt in prompts]


def _response(request: Request, answer: CompletionAnswer | ChatAnswer) -> ASGIApp:
    request.scope["state"]["log_facts"] = answer.usage.log_facts
    return EventStream(answer.events) if answer.body.stream.stream else WatchedAnswer(answer.whole)


async def _fields(request: Request) -> Fields:
    return parse_body(await read_body(request.scope, request.receive))


async def _api_error(_: Request, error: ApiError) -> Response:
    return JSONResponse(error_body(error), status_code=error.status)


async def _http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(error_body(ApiError(error.status_code, message)), error.status_code)


async def _unexpected(request: Request, error: Exception) -> Response:
    request_id = request.scope["state"]["request_id"]
    _LOG.error("request_id=%s failed", request_id, exc_info=error)
    failure = ApiError(500, f"internal error, see the log for request {request_id}")
    return JSONResponse(error_body(failure), status_code=500)
