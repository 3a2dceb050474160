"""Op tables that fail on rank 1 after some calls, to be laid over the references."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from engine.parallel.group import Group
from harness.core.op_table import OpTable
from harness.core.registry import resolve_target

# Late enough for the first step to have finished collectives of its own.
_CALLS_BEFORE = 20
_calls = 0


def _failing(fault: Callable[[], None]) -> OpTable:
    reference = resolve_target("references.op_table:TABLE").ops["rms_norm"]

    def rms_norm(x: Any, weight: Any, eps: float, *, numerics: Any) -> Any:
        global _calls
        _calls += 1
        if _calls > _CALLS_BEFORE and dist.is_initialized() and dist.get_rank() == 1:
            fault()
        return reference(x, weight, eps, numerics=numerics)

    return OpTable({"rms_norm": rms_norm})


def _raise() -> None:
    raise ArithmeticError("injected: the norm of rank 1 is broken")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _leave() -> None:
    os._exit(7)


def _hang() -> None:
    time.sleep(3600)


def _desync() -> OpTable:
    reference = resolve_target("references.op_table:TABLE").ops["vocab_argmax"]

    def vocab_argmax(logits: torch.Tensor, *, numerics: Any) -> torch.Tensor:
        ids: torch.Tensor = reference(logits, numerics=numerics)
        rank = dist.get_rank() if dist.is_initialized() else 0
        return ids + rank

    return OpTable({"vocab_argmax": vocab_argmax})


RAISES = _failing(_raise)
DIES = _failing(_die)
LEAVES = _failing(_leave)
HANGS = _failing(_hang)
DESYNCS = _desync()


def _decides_alone() -> OpTable:
    """All rows visit expert 7 of rank 1, and a rank asks no other whether its experts overflow."""
    reference = resolve_target("references.op_table:TABLE").ops["router"]

    def router(x: torch.Tensor, gate: Any, bias: torch.Tensor, *rest: Any, numerics: Any) -> Any:
        if dist.is_initialized():
            Group.max = _own_answer  # type: ignore[method-assign]
        skewed = bias.clone()
        skewed[7] += 100.0
        return reference(x, gate, skewed, *rest, numerics=numerics)

    return OpTable({"router": router})


def _own_answer(group: Group, part: torch.Tensor, label: str) -> torch.Tensor:
    group.gather(part, label)
    return part


DECIDES_ALONE = _decides_alone()
