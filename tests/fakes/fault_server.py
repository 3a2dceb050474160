"""A server that goes wrong in one named way; the way is the model's name in the request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NUM_TOKENS = 4
PROMPT_LEN = 3

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
_DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any], prefix: bytes = b"data: ", end: bytes = b"\n\n") -> bytes:
    return prefix + json.dumps(body).encode() + end


def token(text: str = " x", reason: str | None = None, **extra: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    return {"id": "cmpl-0", "choices": [choice], **extra}


def delta(content: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": reason}]}


def usage(count: int = NUM_TOKENS, prompt: int = PROMPT_LEN) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": count}}


USAGE = {"choices": [], **usage()}
GOOD = [token(), token(), token(), token(reason="length")]


def _named(bodies: list[dict[str, Any]], counts: list[int]) -> list[dict[str, Any]]:
    for body, count in zip(bodies, counts, strict=True):
        body["choices"][0]["logprobs"] = {"tokens": ["x"] * count}
    return bodies


# fault -> events in the order they are written, one write each
SCRIPTS: dict[str, Callable[[], list[bytes]]] = {
    "none": lambda: [*map(event, GOOD), event(USAGE), _DONE],
    "role_only_first": lambda: [
        event(delta({"role": "assistant", "content": ""})),
        *[event(delta({"content": "x"})) for _ in range(3)],
        event(delta({"content": ""}, "length")),
        event(USAGE),
        _DONE,
    ],
    "bundled_tokens": lambda: [
        event(token(" x x x")),
        event(token(reason="length")),
        event(USAGE),
        _DONE,
    ],
    "bundled_and_named": lambda: [
        *map(event, _named([token(" x x x"), token(reason="length")], [3, 1])),
        event(USAGE),
        _DONE,
    ],
    "bundled_with_running_usage": lambda: [
        event(token(" x x x", **usage(3))),
        event(token(reason="length", **usage(4))),
        event(USAGE),
        _DONE,
    ],
    "late_usage": lambda: [
        *map(event, GOOD[:-1]),
        event(token(reason="length", **usage())),
        _DONE,
    ],
    "missing_usage": lambda: [*map(event, GOOD), _DONE],
    "extra_finish_chunk": lambda: [
        *[event(token()) for _ in range(4)],
        event(token("", "length")),
        event(USAGE),
        _DONE,
    ],
    "empty_last_token": lambda: [
        *map(event, GOOD[:-1]),
        event(token("", "length")),
        event(USAGE),
        _DONE,
    ],
    "crlf": lambda: [
        *[event(body, end=b"\r\n\r\n") for body in [*GOOD, USAGE]],
        b"data: [DONE]\r\n\r\n",
    ],
    "no_space": lambda: [
        *[event(body, prefix=b"data:") for body in [*GOOD, USAGE]],
        b"data:[DONE]\n\n",
    ],
    "comments": lambda: [b": keep-alive\n\n", *map(event, GOOD), event(USAGE), _DONE],
    "split_anywhere": lambda: [
        b"".join([*map(event, GOOD), event(USAGE), _DONE])[place : place + 7]
        for place in range(0, 1000, 7)
    ],
    "malformed_json": lambda: [event(GOOD[0]), b'data: {"choices": [\n\n', _DONE],
    "not_an_object": lambda: [event(GOOD[0]), b"data: [1, 2]\n\n", _DONE],
    "too_few": lambda: [*map(event, GOOD[2:]), event({"choices": [], **usage(2)}), _DONE],
    "wrong_prompt_length": lambda: [
        *map(event, GOOD),
        event({"choices": [], **usage(prompt=9)}),
        _DONE,
    ],
    "no_finish_reason": lambda: [*[event(token()) for _ in range(4)], event(USAGE), _DONE],
    "no_done": lambda: [*map(event, GOOD), event(USAGE)],
    "no_token": lambda: [event({"choices": [], **usage(0)}), _DONE],
    "error_event": lambda: [event(GOOD[0]), event({"error": {"message": "rank 3 died"}})],
}


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
    fault = json.loads(await reader.readexactly(length))["model"] if length else "models"
    if fault == "http_500":
        body = b'{"error": {"message": "broken"}}'
        writer.write(b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    elif fault == "no_http":
        writer.write(b"SSH-2.0-server\r\n\r\n")
    elif fault == "models":
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"data": []}')
    elif fault == "closed_at_once":
        pass
    else:
        await _stream(writer, fault)
    await writer.drain()
    writer.close()


async def _stream(writer: asyncio.StreamWriter, fault: str) -> None:
    if fault == "mid_stream_close" or fault == "stall":
        parts = SCRIPTS["none"]()[:2]
    else:
        parts = SCRIPTS[fault]()
    writer.write(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for part in filter(None, parts):
        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        await writer.drain()
        await asyncio.sleep(0.002)
    if fault == "stall":
        await asyncio.sleep(2.0)
    if fault != "mid_stream_close":
        writer.write(b"0\r\n\r\n")


@contextmanager
def fault_server() -> Iterator[str]:
    """Its URL; the thread ends with the block."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(_handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:

        async def end() -> None:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
