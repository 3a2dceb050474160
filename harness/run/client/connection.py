"""HTTP/1.1 over one socket, reduced to what streaming needs: every read is stamped at once.

General HTTP clients stamp a chunk when a coroutine is resumed, after parsing; here the clock is
read first thing in the callback that the event loop makes when the socket has given its bytes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from harness.core.errors import UsageError

__all__ = ["Address", "Answer", "ExchangeError", "exchange", "parse_address"]

_MAX_HEAD_BYTES = 64 * 1024


class ExchangeError(Exception):
    """The exchange did not come to its end; the text says how."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens.

    Attributes:
        prefix: path before the API's own paths, without a slash at its end.
    """

    host: str
    port: int
    is_secure: bool
    prefix: str

    @property
    def netloc(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """A base URL, with or without a trailing /v1.

    Raises:
        UsageError: no http or https URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r}: give a URL like http://127.0.0.1:8000")
    is_secure = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(parts.hostname, port or (443 if is_secure else 80), is_secure, prefix)


@dataclass(slots=True)
class Answer:
    """Status line and headers; the body goes to the receiver as it comes.

    Attributes:
        t_send_ns: perf_counter_ns before the connection was opened.
        t_last_read_ns: of the last read that brought bytes; 0 without any.
    """

    t_send_ns: int = 0
    t_last_read_ns: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


# Called with the answer so far, its last read just stamped, and bytes of the body.
Receiver = Callable[[Answer, bytes], None]


async def exchange(
    address: Address, request: bytes, answer: Answer, receive: Receiver, *, stall_s: float
) -> None:
    """Send one request on a connection of its own and pass the answer's body on until it ends.

    Args:
        answer: filled in on the way, so that a failure leaves what was known before it.
        stall_s: longest time without a byte.

    Raises:
        ExchangeError: refused, closed early, stalled, or not HTTP/1.1.
    """
    loop = asyncio.get_running_loop()
    answer.t_send_ns = time.perf_counter_ns()
    protocol = _Exchange(loop, answer, receive)
    context = ssl.create_default_context() if address.is_secure else None
    try:
        transport, _ = await asyncio.wait_for(
            loop.create_connection(lambda: protocol, address.host, address.port, ssl=context),
            stall_s,
        )
    except TimeoutError as error:
        raise ExchangeError(f"no connection within {stall_s:g} s") from error
    except OSError as error:
        raise ExchangeError(f"cannot connect to {address.netloc}: {error}") from error
    try:
        transport.write(request)
        await protocol.finished(stall_s)
    finally:
        transport.abort()


class _Exchange(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Answer, receive: Receiver) -> None:
        self._loop = loop
        self._answer = answer
        self._receive = receive
        self._done: asyncio.Future[None] = loop.create_future()
        self._buffer = b""
        self._decode: Callable[[], None] = self._read_head
        self._remaining = 0
        self._ends_with_connection = False

    async def finished(self, stall_s: float) -> None:
        """Wait for the end of the body.

        Raises:
            ExchangeError: as `exchange`.
        """
        start_ns = time.perf_counter_ns()
        while not self._done.done():
            last_ns = self._answer.t_last_read_ns or start_ns
            left_s = stall_s - (time.perf_counter_ns() - last_ns) / 1e9
            if left_s <= 0:
                raise ExchangeError(f"no byte within {stall_s:g} s")
            await asyncio.wait([self._done], timeout=left_s)
        self._done.result()

    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        if self._done.done():
            return
        self._answer.t_last_read_ns = now_ns
        self._buffer += data
        try:
            self._decode()
        except (ValueError, ExchangeError) as error:
            self._fail(f"the answer is not HTTP/1.1: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        if self._done.done():
            return
        if error is None and self._ends_with_connection:
            self._done.set_result(None)
        else:
            self._fail(f"the connection ended mid-answer{f': {error}' if error else ''}")

    def _fail(self, message: str) -> None:
        self._done.set_exception(ExchangeError(message))

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _read_head(self) -> None:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise ExchangeError("its head does not end")
            return
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, status = status_line.split(" ")[:2]
        if not version.startswith("HTTP/1."):
            raise ExchangeError(f"it starts with {status_line[:40]!r}")
        self._answer.status = int(status)
        for line in lines:
            name, _, value = line.partition(":")
            self._answer.headers[name.strip().lower()] = value.strip()
        self._buffer = rest
        self._choose_body()
        self._decode()

    def _choose_body(self) -> None:
        headers = self._answer.headers
        if headers.get("transfer-encoding", "").lower() == "chunked":
            self._decode = self._read_chunks
        elif "content-length" in headers:
            self._remaining = int(headers["content-length"])
            self._decode = self._read_counted
        else:
            self._ends_with_connection = True
            self._decode = self._read_all

    def _read_chunks(self) -> None:
        parts = []
        while True:
            size_text, separator, rest = self._buffer.partition(b"\r\n")
            if not separator:
                break
            size = int(size_text.partition(b";")[0], 16)
            if len(rest) < size + 2:
                break
            parts.append(rest[:size])
            self._buffer = rest[size + 2 :]
            if size == 0:
                self._pass_on(parts)
                self._finish()
                return
        self._pass_on(parts)

    def _read_counted(self) -> None:
        part = self._buffer[: self._remaining]
        self._remaining -= len(part)
        self._buffer = b""
        self._pass_on([part])
        if self._remaining == 0:
            self._finish()

    def _read_all(self) -> None:
        part, self._buffer = self._buffer, b""
        self._pass_on([part])

    def _pass_on(self, parts: list[bytes]) -> None:
        if content := b"".join(parts):
            self._receive(self._answer, content)
