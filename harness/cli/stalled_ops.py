"""An op table whose rank 1 stops answering in its first decode step: a fault of real processes."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from harness.core.op_table import OpTable
from harness.core.registry import resolve_target

__all__ = ["TABLE"]

# Longer than any time limit of a fault case; the parent ends the rank long before.
_STALL_S = 600.0


def _hc_mixes(streams: torch.Tensor, *arguments: Any, numerics: Any) -> Any:
    # Only layers mix streams, so one row here is a decode step and not the row that is sampled.
    if streams.shape[0] == 1 and dist.is_initialized() and dist.get_rank() == 1:
        time.sleep(_STALL_S)
    reference = resolve_target("references.op_table:TABLE").ops["hc_mixes"]
    return reference(streams, *arguments, numerics=numerics)


TABLE = OpTable({"hc_mixes": _hc_mixes})
