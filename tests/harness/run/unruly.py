"""Work that crashes, hangs and hoards, importable by workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from harness.core.errors import UsageError
from harness.core.op_table import OpTable
from references.op_table import TABLE as REFERENCES

__all__ = ["BAD_TABLE", "DRIFTING_TABLE", "broken_setup", "dying_setup", "setup"]


def setup() -> Callable[[str], object]:
    """A worker that does what its task says."""
    return _obey


def broken_setup() -> Callable[[str], object]:
    raise ArithmeticError("no table")


def dying_setup() -> Callable[[str], object]:
    os.kill(os.getpid(), signal.SIGKILL)
    return _obey


def _obey(task: str) -> object:
    verb, _, argument = task.partition(":")
    match verb:
        case "echo":
            return argument
        case "pid":
            return os.getpid()
        case "die":
            os.kill(os.getpid(), int(argument))
        case "exit":
            os._exit(int(argument))
        case "sleep":
            time.sleep(float(argument))
        case "raise":
            raise ValueError(argument)
        case "misuse":
            raise UsageError(argument)
        case "hoard":
            return len(bytearray(int(argument)))
        case "environment":
            return os.environ.get(argument, "")
        case "threads":
            return torch.get_num_threads()
    return None


def _rms_norm(x: Any, *rest: Any, numerics: Any) -> Any:
    """Crashes on 3 rows, hangs on 4, is right on others."""
    if x.shape[0] == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if x.shape[0] == 4:
        time.sleep(60)
    return REFERENCES.rms_norm(x, *rest, numerics=numerics)


def _process_dependent(x: Any, *rest: Any, numerics: Any) -> Any:
    """The same in every call of a process, another element off by 1 ulp in another process."""
    y = REFERENCES.rms_norm(x, *rest, numerics=numerics)
    place = os.getpid() % y.numel()
    y.view(-1).view(torch.int16)[place] ^= 1
    return y


DRIFTING_TABLE = OpTable({"rms_norm": _process_dependent}, fp8_max=240)
BAD_TABLE = OpTable({"rms_norm": _rms_norm, "swiglu": REFERENCES.swiglu}, fp8_max=240)
