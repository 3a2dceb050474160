"""Answers that end with their client: a stream of events, or one JSON body, and a watch on the
connection beside it. What is being generated for a client that went away is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.types import Receive, Scope, Send

from engine.serve.errors import ApiError, error_body

__all__ = ["DONE", "EventStream", "WatchedAnswer", "event"]

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect chunks
]


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


class WatchedAnswer:
    """An ASGI response whose work is cancelled when its client goes away.

    Args:
        make: the JSON body.
    """

    def __init__(self, make: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._make = make

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Answer; see ASGI."""
        await _while_connected(self._work(send), receive)

    async def _work(self, send: Send) -> None:
        try:
            status, body = 200, await self._make()
        except ApiError as error:
            status, body = error.status, error_body(error)
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class EventStream:
    """An ASGI response of server-sent events, each sent as soon as it is there.

    The status waits for the first event, so that what fails before it is a plain HTTP error.

    Args:
        make: the events, each one whole.
    """

    def __init__(self, make: Callable[[], AsyncIterator[bytes]]) -> None:
        self._make = make

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Answer; see ASGI."""
        await _while_connected(self._work(send), receive)

    async def _work(self, send: Send) -> None:
        is_started = False
        try:
            async with aclosing(self._make()) as events:  # type: ignore[type-var]
                async for content in events:
                    if not is_started:
                        start = {"type": "http.response.start", "status": 200}
                        await send({**start, "headers": _HEADERS})
                        is_started = True
                    await send({"type": "http.response.body", "body": content, "more_body": True})
        except ApiError as error:
            if not is_started:
                await WatchedAnswer(_raising(error))._work(send)
                return
            # The status line is out: the error is an event, and no [DONE] follows it.
            body = event(error_body(error))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _raising(error: ApiError) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def make() -> dict[str, Any]:
        raise error

    return make


async def _while_connected(work: Awaitable[None], receive: Receive) -> None:
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
        # Cancelled work still has to give its sequences back.
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
