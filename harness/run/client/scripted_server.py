"""A server in a process of its own that writes chunks on a schedule and remembers when.

What a client measures is compared with it: both read the host's one monotonic clock. Run with
`python -m harness.run.client.scripted_server`; it prints its port and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["scripted_server"]

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


@contextmanager
def scripted_server() -> Iterator[str]:
    """Start the process, give its URL, end it.

    The model's name sets the pace: "100" writes 100 tokens a second, "0" as fast as it can.
    GET /stamps tells the stamps of every stream so far, by the first id of its prompt.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


class _Script:
    def __init__(self) -> None:
        self._stamps: dict[str, list[int]] = {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next((int(ln[15:]) for ln in lines if ln.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if lines[0].startswith("get /stamps"):
            self._send_json(writer, self._stamps)
        elif lines[0].startswith("get "):
            self._send_json(writer, {"data": [{"id": "100", "max_model_len": 1 << 20}]})
        else:
            await self._stream(writer, json.loads(body))
        writer.close()

    def _send_json(self, writer: asyncio.StreamWriter, value: object) -> None:
        content = json.dumps(value).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, object]) -> None:
        prompt, count = body["prompt"], body["max_tokens"]
        assert isinstance(prompt, list)
        assert isinstance(count, int)
        gap_s = 1 / rate if (rate := float(str(body["model"]))) else 0.0
        writer.write(_HEAD)
        stamps: list[int] = []
        start_s = time.perf_counter()
        for number in range(count):
            wait_s = start_s + (number + 1) * gap_s - time.perf_counter()
            if gap_s:
                await asyncio.sleep(max(0.0, wait_s))
            elif number % 64 == 63:
                await writer.drain()
            reason = "length" if number == count - 1 else None
            choice = {"index": 0, "text": " x", "logprobs": None, "finish_reason": reason}
            stamps.append(time.perf_counter_ns())
            writer.write(_chunk({"id": "cmpl-0", "choices": [choice]}))
        self._stamps[str(prompt[0])] = stamps
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        writer.write(_chunk({"id": "cmpl-0", "choices": [], "usage": usage}))
        writer.write(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


def _chunk(body: dict[str, object]) -> bytes:
    return _framed(b"data: " + json.dumps(body).encode() + b"\n\n")


def _framed(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


async def _main() -> None:
    server = await asyncio.start_server(_Script().handle, "127.0.0.1", 0)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait_for_parent() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(_main())
