"""Where the time of a decode step goes: its parts as measured, and what an op should cost.

Times are raw, one a measured step, so that medians and the residual are derived in `reports`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["OpCost", "PartKind", "StepLedger", "StepPart"]


class PartKind(Enum):
    """What a part of a step is."""

    REGION = "region"
    COLLECTIVE = "collective"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of a decode step.

    Attributes:
        name: "layer ratio 2 owner / attention", "attention" (a collective's place), ...
        calls: in one step.
        self_ns: by step, the time spent in it and in no other part.
        estimate_ns: by roofline or by the collective's line; None where nothing is estimated.
    """

    name: str
    kind: PartKind
    calls: float
    self_ns: tuple[int, ...]
    estimate_ns: float | None = None


@dataclass(frozen=True, slots=True)
class OpCost:
    """One op of a decode step, all its calls together.

    Attributes:
        calls: in one step.
        num_bytes, flops: that its calls must move and compute.
        estimate_ns: sum over calls of launch floor plus the longer of moving and computing.
        measured_ns: by step; () where ops could not be timed one by one.
    """

    op: str
    calls: int
    num_bytes: float
    flops: float
    estimate_ns: float
    measured_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepLedger:
    """Decode steps of one setting.

    Attributes:
        setting: label of the settings.
        config: what distinguishes it (numerics, cp, ep, ops, input_len, context, checkpoint).
        step_ns: token to token of each measured step, with its parts timed.
        untimed_step_ns: the same of another run without timing: what timing itself costs.
        parts: disjoint; their sum never exceeds a step.
        calibration: how the estimates are to be called, "uncalibrated (...)" or "calibrated ...".
        status: "OK"; a ledger is a measurement and judges nothing.
    """

    setting: str
    config: Mapping[str, Any]
    step_ns: tuple[int, ...]
    untimed_step_ns: tuple[int, ...]
    parts: tuple[StepPart, ...]
    ops: tuple[OpCost, ...]
    calibration: str
    status: str = "OK"

    def __post_init__(self) -> None:
        if not self.step_ns or not self.parts:
            raise ValueError(f"{self.setting}: a step ledger needs steps and parts")
        for part in self.parts:
            if len(part.self_ns) != len(self.step_ns):
                raise ValueError(f"{part.name}: {len(part.self_ns)} of {len(self.step_ns)} steps")
        for step, total in enumerate(self.step_ns):
            spent = [part.self_ns[step] for part in self.parts]
            if min(spent) < 0 or sum(spent) > total:
                raise ValueError(f"{self.setting}: parts of step {step} take {spent} of {total} ns")
