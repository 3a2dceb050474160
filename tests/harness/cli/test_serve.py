"""`neuron-harness serve` as a process: it announces itself, serves, and ends in order."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

COMMAND = [sys.executable, "-c", "from harness.cli.main import main; main()", "serve"]
ROOT = Path(__file__).parents[3]
CHECKPOINT = ROOT / "tests" / "data" / "oracle" / "long"


@contextmanager
def served(
    *options: str, checkpoint: Path = CHECKPOINT
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*COMMAND, "--checkpoint", str(checkpoint), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a pipe nobody reads would fill up with log lines
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "serving on http://127.0.0.1:" in line, line
        yield process, line.split()[-1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_sigterm_lets_a_running_stream_end_and_exits_with_zero() -> None:
    with served("--cp", "1", "--served-model-name", "tiny") as (process, url):
        body = {"prompt": [3, 4, 5], "max_tokens": 40, "stream": True, "ignore_eos": True}
        with httpx.Client(timeout=60, trust_env=False) as client:
            assert client.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny"
            with client.stream("POST", f"{url}/v1/completions", json=body) as response:
                parts = response.iter_lines()
                first = json.loads(next(parts).removeprefix("data: "))
                assert first["choices"][0]["finish_reason"] is None
                process.send_signal(signal.SIGTERM)
                lines = [line for line in parts if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) == 40
        assert process.wait(timeout=30) == 0


def test_a_taken_port_is_the_users_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*COMMAND, "--checkpoint", str(CHECKPOINT)]
        done = subprocess.run(
            [*command, "--port", port], capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 2
    assert f"--port {port}: cannot listen there" in done.stderr
    assert "Traceback" not in done.stderr


SLOW_SERVER = """
import sys
from engine.serve.app import ServeOptions
from engine.serve.runner import listen_on, serve
from tests.fakes.formula_engine import formula_engine
listener = listen_on("127.0.0.1", 0)
say = lambda url: print(url, flush=True)
serve(formula_engine(step_s=0.2), ServeOptions(), listener, grace_s=1, announce=say)
"""


def test_what_does_not_end_within_the_grace_is_cut_off() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_SERVER], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        body = {"prompt": [3, 4, 5], "max_tokens": 100, "stream": True, "ignore_eos": True}
        with (
            httpx.Client(timeout=60, trust_env=False) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            parts = response.iter_lines()
            next(parts)
            process.send_signal(signal.SIGTERM)
            lines = []
            with suppress(httpx.RemoteProtocolError):
                lines += list(parts)
        # 100 tokens take 20 s.
        assert process.wait(timeout=15) == 0
        assert "data: [DONE]" not in lines
    finally:
        process.kill()
        process.communicate()


def test_a_server_of_a_sweep_ends_with_whoever_started_it() -> None:
    command = [*COMMAND, "--checkpoint", str(CHECKPOINT), "--port", "0", "--ends-with-stdin"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert "serving on" in process.stdout.readline()
        process.stdin.close()  # as the system does it for a process that was killed
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.stdin = None
        process.communicate()
