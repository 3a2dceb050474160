"""What a step ledger says once its raw times are summed up: medians, shares, the residual."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.record import to_plain

__all__ = ["Account", "Line", "OpLine", "account_of"]

UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Line:
    """One part of a step.

    Attributes:
        kind: "region", "collective", "host", "unexplained" or "step".
        ms: median over steps.
        share: of the step, by sums over all steps: shares add up to 1.
        estimate_ms: None where nothing is estimated.
    """

    name: str
    kind: str
    calls: float | None
    ms: float
    share: float
    estimate_ms: float | None = None


@dataclass(frozen=True, slots=True)
class OpLine:
    """One op; `ms` is None where ops could not be timed one by one."""

    name: str
    calls: int
    ms: float | None
    estimate_ms: float
    num_bytes: float
    flops: float


@dataclass(frozen=True, slots=True)
class Account:
    """Lines of parts, the largest first, then what no part explains, then the whole step."""

    lines: tuple[Line, ...]
    ops: tuple[OpLine, ...]
    step_ms: float
    untimed_step_ms: float | None
    unexplained_share: float
    sentence: str


def account_of(ledger: object) -> Account:
    """From a StepLedger or the payload of its record."""
    payload: Mapping[str, Any] = to_plain(ledger)
    total = payload["step_ns"]
    parts = sorted(payload["parts"], key=lambda part: -sum(part["self_ns"]))
    lines = [
        Line(
            part["name"],
            part["kind"],
            part["calls"],
            _ms(part["self_ns"]),
            sum(part["self_ns"]) / sum(total),
            None if part.get("estimate_ns") is None else part["estimate_ns"] / 1e6,
        )
        for part in parts
    ]
    rest = [ns - sum(part["self_ns"][step] for part in parts) for step, ns in enumerate(total)]
    unexplained = sum(rest) / sum(total)
    lines.append(Line(UNEXPLAINED, UNEXPLAINED, None, _ms(rest), unexplained))
    ops = tuple(
        OpLine(
            op["op"],
            op["calls"],
            _ms(op["measured_ns"]) if op["measured_ns"] else None,
            op["estimate_ns"] / 1e6,
            op["num_bytes"],
            op["flops"],
        )
        for op in sorted(payload["ops"], key=lambda op: -op["estimate_ns"])
    )
    estimated = _estimated_ms(ops, lines)
    lines.append(Line("step", "step", None, _ms(total), 1.0, estimated))
    untimed = payload.get("untimed_step_ns") or ()
    plain_ms = _ms(untimed) if untimed else None
    return Account(
        tuple(lines),
        ops,
        _ms(total),
        plain_ms,
        unexplained,
        _sentence(_ms(total), plain_ms, unexplained, estimated, len(total), payload),
    )


def _estimated_ms(ops: Sequence[OpLine], lines: Sequence[Line]) -> float:
    """Of the whole step: its ops and its collectives one after the other."""
    return sum(op.estimate_ms for op in ops) + sum(line.estimate_ms or 0.0 for line in lines)


def _sentence(
    step_ms: float,
    plain_ms: float | None,
    unexplained: float,
    estimated: float,
    count: int,
    payload: Mapping[str, Any],
) -> str:
    timing = ""
    if plain_ms:
        timing = f", {plain_ms:.3f} ms without timing ({step_ms / plain_ms - 1:+.1%} of timing)"
    return (
        f"step {step_ms:.3f} ms (median of {count}){timing}; {unexplained:.1%} unexplained; ops "
        f"and collectives one after another are estimated at {estimated:.3f} ms, "
        f"{payload['calibration']}"
    )


def _ms(values_ns: Sequence[int]) -> float:
    return statistics.median(values_ns) / 1e6
