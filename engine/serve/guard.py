"""What stands before every endpoint: key, size limit, request id, log line, count."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.serve.errors import ApiError, error_body
from engine.serve.metrics import ServerMetrics

__all__ = ["Guard", "read_body"]

_LOG = logging.getLogger("neuron_harness.serve")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
# A load balancer's probe carries no key.
_OPEN_PATHS = ("/health",)


class Guard:
    """ASGI middleware; pure, so that no layer collects chunks.

    Args:
        api_key: empty lets everybody in.
        max_body_bytes: larger bodies are refused with 413, announced or not.
        endpoints: paths that are counted by name; all others count as "other".
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: ServerMetrics,
        api_key: str,
        max_body_bytes: int,
        endpoints: frozenset[str],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._api_key = api_key.encode()
        self._max_body_bytes = max_body_bytes
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "facts": {}}
        start_ns, status = time.perf_counter_ns(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                marked = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": marked}
            await send(message)

        try:
            refusal = self._refusal(scope, headers)
            if refusal is None:
                await self._app(scope, receive, send_marked)
            else:
                await _answer(refusal, send_marked)
        finally:
            self._note(scope, request_id, status, start_ns)

    def _refusal(self, scope: Scope, headers: MutableMapping[bytes, bytes]) -> ApiError | None:
        if self._api_key and scope["path"] not in _OPEN_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            # Digests have one length and are compared whole: timing tells nothing of the key.
            same = hmac.compare_digest(_digest(given.strip()), _digest(self._api_key))
            if scheme.lower() != b"bearer" or not same:
                return ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._max_body_bytes:
            return _too_large(self._max_body_bytes)
        scope["state"]["max_body_bytes"] = self._max_body_bytes
        return None

    def _note(self, scope: Scope, request_id: str, status: int, start_ns: int) -> None:
        elapsed_ns = time.perf_counter_ns() - start_ns
        path = scope["path"] if scope["path"] in self._endpoints else "other"
        # Nothing was answered where the client went away first.
        shown = str(status) if status else "gone"
        self._metrics.requests.labels(path, shown).inc()
        facts: dict[str, Any] = dict(scope["state"]["facts"])
        # What only the end of an answer tells: its tokens, and when they went out.
        if (log_facts := scope["state"].get("log_facts")) is not None:
            facts |= log_facts(start_ns)
        extra = "".join(f" {name}={value}" for name, value in facts.items())
        _LOG.info(
            "request_id=%s method=%s path=%s status=%s elapsed_ms=%.1f%s",
            request_id,
            scope["method"],
            path,
            shown,
            elapsed_ns / 1e6,
            extra,
        )


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413 past the limit; 400 where the client left while sending.
    """
    limit = scope["state"]["max_body_bytes"]
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client left before its request was whole")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request body is larger than {limit} bytes")


def _request_id(headers: MutableMapping[bytes, bytes]) -> str:
    """The caller's own id if it is harmless in a log line, else a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


async def _answer(error: ApiError, send: Send) -> None:
    content = json.dumps(error_body(error)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
