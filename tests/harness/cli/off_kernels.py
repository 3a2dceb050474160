"""The rms_norm kernel with a wrong answer, one that never ends, and one that takes memory."""

from __future__ import annotations

import time
from typing import Any

import torch

from harness.core.op_table import OpTable
from kernels.op_table import TABLE as KERNELS

__all__ = ["EMPTY", "GREEDY_AT_FIVE", "HANGING", "HANGING_AT_FIVE", "OFF"]


def _off(*arguments: Any, numerics: Any) -> Any:
    return KERNELS.rms_norm(*arguments, numerics=numerics) * 1.05


def _hanging(*arguments: Any, numerics: Any) -> Any:
    time.sleep(600)


def _hanging_at_five(x: Any, *rest: Any, numerics: Any) -> Any:
    if x.shape[0] == 5:
        time.sleep(600)
    return KERNELS.rms_norm(x, *rest, numerics=numerics)


def _greedy(x: Any, *rest: Any, numerics: Any) -> Any:
    if x.shape[0] == 5:
        torch.ones(1 << 28)  # 1 GiB of float32
    return KERNELS.rms_norm(x, *rest, numerics=numerics)


OFF = OpTable({"rms_norm": _off}, fp8_max=240)
HANGING = OpTable({"rms_norm": _hanging}, fp8_max=240)
HANGING_AT_FIVE = OpTable({"rms_norm": _hanging_at_five}, fp8_max=240)
GREEDY_AT_FIVE = OpTable({"rms_norm": _greedy}, fp8_max=240)
EMPTY = OpTable({}, fp8_max=240)
