"""Servers a sweep measures: one started for a setting, or one that already runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from harness.cli.engine_options import engine_arguments
from harness.core.engine_face import EngineSettings
from harness.core.errors import MissingEvidenceError

if TYPE_CHECKING:
    from harness.run.client.completion import CompletionClient

__all__ = ["attached", "started"]

_COMMAND = [sys.executable, "-c", "from harness.cli.main import main; main()", "serve"]
_KEY_VARIABLE = "NEURON_HARNESS_API_KEY"
_STOP_LIMIT_S = 60.0


def attached(
    url: str, model: str
) -> Callable[[EngineSettings], AbstractContextManager[CompletionClient]]:
    """A factory that always gives the server at `url`, which stays up."""

    @contextmanager
    def open_server(_: EngineSettings) -> Iterator[CompletionClient]:
        yield client_of(url, model)

    return open_server


def client_of(url: str, model: str = "") -> CompletionClient:
    """A client with the key of the environment, if there is one."""
    from harness.run.client.completion import CompletionClient

    return CompletionClient(url, model=model, api_key=os.environ.get(_KEY_VARIABLE, ""))


@contextmanager
def started(settings: EngineSettings) -> Iterator[CompletionClient]:
    """`neuron-harness serve` on a free port in a process of its own, ended with the block, or with
    this process however that ends.

    Raises:
        MissingEvidenceError: it does not come up; the message ends with what it said.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*_COMMAND, *engine_arguments(settings), "--port", "0", "--ends-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_without_aliases(os.environ),
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "serving on " not in line:
                process.wait()
                log.seek(0)
                raise MissingEvidenceError(
                    f"the server of {settings.label} ended with code {process.returncode} before "
                    f"it listened: {log.read()[-2000:].strip()}"
                )
            client = client_of(line.split()[-1])
            asyncio.run(client.facts())
            yield client
        finally:
            _stop(process)


def _without_aliases(environment: Mapping[str, str]) -> dict[str, str]:
    """A point's record holds the whole setting: no variable may change it behind its back."""
    from engine.environment import PREFIX

    return {name: text for name, text in environment.items() if not name.startswith(PREFIX)}


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
