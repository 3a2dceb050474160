"""Runs a command or a piece of Python in a process of the stand-in host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes_neuron import stand_in_environment

__all__ = ["run_command", "run_here", "run_python"]

_LIMIT_S = 240.0


def run_command(
    *arguments: object, directory: Path | None = None, limit_s: float = _LIMIT_S, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`neuron-harness <arguments>` beside the stand-in."""
    code = "from harness.cli.main import main; main()"
    return _run(["-c", code, *map(str, arguments)], directory, variables, limit_s)


def run_here(
    *arguments: object, directory: Path | None = None, limit_s: float = _LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """`neuron-harness <arguments>` in a process of this host, without the stand-in."""
    code = "from harness.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program text beside the stand-in; it must succeed."""
    done = _run(["-c", code], None, variables)
    assert done.returncode == 0, done.stderr
    return done


def _run(
    arguments: list[str],
    directory: Path | None,
    variables: dict[str, str],
    limit_s: float = _LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=stand_in_environment(**variables),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
