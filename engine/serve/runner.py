"""The process that serves: a socket, uvicorn, signals and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from engine.llm import LLM
from engine.serve.app import ServeOptions, build_app
from harness.core.errors import UsageError

__all__ = ["listen_on", "serve", "server_config"]

_BACKLOG = 2048
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    engine: LLM,
    options: ServeOptions,
    listener: socket.socket,
    *,
    grace_s: float,
    announce: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM, or until the engine fails.

    No new connection is taken after the first signal; what runs may end within `grace_s`, what
    does not is cancelled. A second SIGINT ends at once.

    Args:
        announce: called with the server's URL once it listens.

    Raises:
        RankError, Exception: what the engine failed with.
    """
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    asyncio.run(_serve(engine, options, listener, grace_s, lambda: announce(url)))


class _Server(uvicorn.Server):
    """uvicorn without its habit of raising the signal again: a requested end is exit code 0."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the handlers on the loop and take them back at the end."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()


async def _serve(
    engine: LLM,
    options: ServeOptions,
    listener: socket.socket,
    grace_s: float,
    announce: Callable[[], None],
) -> None:
    server: _Server | None = None

    def stop() -> None:
        assert server is not None
        server.should_exit = True

    app, bridge = build_app(engine, options, on_failure=stop)
    config = server_config(app, grace_s)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = _Server(config, announce)
    await server.serve(sockets=[listener])
    if bridge.failure is not None:
        raise bridge.failure


def server_config(app: ASGIApp, grace_s: float) -> uvicorn.Config:
    """How uvicorn runs the application: no compression, no access log, chunks as they come."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        loop="asyncio",
        http="h11",
        ws="none",
        backlog=_BACKLOG,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )


def listen_on(host: str, port: int) -> socket.socket:
    """A bound socket; taken before a checkpoint is loaded, so that a taken port costs nothing.

    Args:
        port: 0 takes a free one.

    Raises:
        UsageError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts; without, it does not.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"--host {host} --port {port}: cannot listen there: {error}") from error
    listener.setblocking(False)
    return listener
