"""A server on a thread of the test process, as the runner configures it."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from engine.llm import LLM
from engine.serve.app import ServeOptions, build_app
from engine.serve.bridge import EngineBridge
from engine.serve.runner import listen_on, server_config
from tests.fakes.formula_engine import ORACLE
from tiny_checkpoints.tokenizer import build_tokenizer


@dataclass
class RunningServer:
    """Where it listens, and what is behind it."""

    url: str
    bridge: EngineBridge
    http: httpx.Client
    uvicorn: uvicorn.Server

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Events of a stream, without the final [DONE], which must be there."""
        response = self.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def metric(self, name: str) -> float:
        """The value of one sample of /metrics, labels included in the name."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no sample {name}")

    def wait_until(self, holds: Callable[[], bool], limit_s: float = 10.0) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline, "did not come to pass"
            time.sleep(0.005)


@contextmanager
def running(engine: LLM, options: ServeOptions = ServeOptions()) -> Iterator[RunningServer]:  # noqa: B008
    listener = listen_on("127.0.0.1", 0)
    app, bridge = build_app(engine, options)
    server = uvicorn.Server(server_config(app, grace_s=2))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
            yield RunningServer(url, bridge, http, server)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        engine.close()


def checkpoint_with_tokenizer(place: Path) -> Path:
    """The configuration of an oracle checkpoint beside the tiny tokenizer; no weights."""
    for name in ("config.json", "engram_token_map.json"):
        shutil.copy(ORACLE / name, place / name)
    vocabulary = json.loads((ORACLE / "config.json").read_text())["text_config"]["vocab_size"]
    tokenizer = build_tokenizer(vocabulary).as_json()
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return place
