"""One worker a NeuronCore: which cores there are, and the variable that gives a process its own.

Nothing here loads the SDK: a process that has touched the runtime holds its cores.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

from harness.core.errors import MissingEvidenceError, UsageError

__all__ = ["VISIBLE_CORES", "core_environments", "parse_cores", "visible_cores"]

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
_CORES = re.compile(r"(\d+)(?:-(\d+))?")
_CHILD = "import torch; print(int(torch.get_device_module('neuron').device_count()))"
_CHILD_LIMIT_S = 120.0


def parse_cores(text: str) -> tuple[int, ...]:
    """ "0-3,6" -> (0, 1, 2, 3, 6).

    Raises:
        UsageError: not a list of cores and ranges, or a core twice.
    """
    cores: list[int] = []
    for part in text.split(","):
        found = _CORES.fullmatch(part.strip())
        if found is None:
            raise UsageError(f"{VISIBLE_CORES}={text!r}: give cores like 0-3,6")
        cores.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
    if not cores or len(set(cores)) != len(cores):
        raise UsageError(f"{VISIBLE_CORES}={text!r}: names no core, or one twice")
    return tuple(cores)


def visible_cores(environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Logical cores this process may use: the variable's, else all that a child process finds.

    Raises:
        UsageError: the variable cannot be read.
        MissingEvidenceError: there is no core, or it cannot be asked for.
    """
    text = environment.get(VISIBLE_CORES, "").strip()
    if text:
        return parse_cores(text)
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _CHILD],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_CHILD_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingEvidenceError(
            f"the number of NeuronCores is not known after {_CHILD_LIMIT_S:g} s"
        ) from error
    answer = asked.stdout.strip().rpartition("\n")[2]
    if asked.returncode or not answer.isdecimal() or not int(answer):
        reason = asked.stderr.strip().rpartition("\n")[2] or "it found none"
        raise MissingEvidenceError(f"there is no NeuronCore to run on: {reason}")
    return tuple(range(int(answer)))


def core_environments(num_workers: int, cores: tuple[int, ...]) -> tuple[dict[str, str], ...]:
    """What each worker's environment holds beside the parent's; 0 workers: one a core.

    Raises:
        UsageError: more workers than cores.
    """
    if num_workers > len(cores):
        raise UsageError(f"--jobs {num_workers}: {len(cores)} NeuronCores are visible")
    return tuple({VISIBLE_CORES: str(core)} for core in cores[: num_workers or len(cores)])
