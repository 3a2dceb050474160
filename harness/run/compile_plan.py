"""Compiles a list of op calls ahead of a sweep, in parallel, and remembers what is done.

A call counts as compiled only once it has run; its record carries the compiler's versions. What
was interrupted has no record and is compiled again.
"""

from __future__ import annotations

import ast
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.core.errors import InputError
from harness.core.numerics import Numerics
from harness.core.op_call import Argument, OpCall
from harness.core.registry import resolve_target
from harness.core.weights import QuantisedWeight
from harness.run.isolate import Finished, Limits, WorkerPool

__all__ = ["CompileEstimate", "Compiled", "arguments_of", "compile_calls", "estimate", "worker"]

_UNIT_SCALE = 127  # the ue8m0 byte of 1
# Bytes that are a number both as an fp8 code and as a ue8m0 scale; masks that hide nothing.
_FILL = {torch.uint8: 64, torch.bool: True}
_GROUP_SIZES = "linear_fp4_grouped"

Setup = Callable[[], Callable[[OpCall], float]]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The payload of a record.

    Attributes:
        status: "OK" or "FAILED".
        seconds: from start to the end of the first run; None where there was none.
        versions: of the compiler.
    """

    label: str
    op: str
    status: str
    seconds: float | None
    message: str
    backend: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CompileEstimate:
    """How long the rest may take.

    Attributes:
        seconds: of the calls with a known op, over the jobs; None without any record.
        num_known: calls whose op has a record.
    """

    num_calls: int
    num_known: int
    seconds: float | None

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.num_calls} graphs, no earlier record to estimate from"
        known = "" if self.num_known == self.num_calls else f" ({self.num_known} of them known)"
        return f"{self.num_calls} graphs{known}, about {self.seconds / 60:.1f} min"


def estimate(
    calls: Sequence[OpCall], earlier: Sequence[Mapping[str, Any]], jobs: int
) -> CompileEstimate:
    """Median seconds of each op's earlier compiles; unknown ops take the median of all."""
    by_op: dict[str, list[float]] = {}
    for record in earlier:
        if record.get("status") == "OK" and record.get("seconds") is not None:
            by_op.setdefault(str(record["op"]), []).append(float(record["seconds"]))
    every = [value for values in by_op.values() for value in values]
    if not every:
        return CompileEstimate(len(calls), 0, None)
    total = sum(statistics.median(by_op.get(call.op, every)) for call in calls)
    num_known = sum(call.op in by_op for call in calls)
    return CompileEstimate(len(calls), num_known, total / max(1, jobs))


def compile_calls(
    calls: Sequence[OpCall],
    setup: Setup,
    *,
    jobs: int,
    time_limit_s: float,
    backend: str,
    versions: Mapping[str, str],
) -> Iterator[tuple[OpCall, Compiled]]:
    """Every call with what became of it, in the order they end.

    Args:
        setup: run in each worker process; usually `worker`.
        time_limit_s: of one call; a compiler that hangs costs one call.

    Raises:
        MissingEvidenceError: the backend cannot run here.
    """
    limits = Limits(time_limit_s=time_limit_s)
    with WorkerPool(setup, max(1, min(jobs, len(calls) or 1)), limits) as pool:
        for place, outcome in pool.run(calls):
            call = calls[place]
            done = isinstance(outcome, Finished)
            yield (
                call,
                Compiled(
                    label=call.label,
                    op=call.op,
                    status="OK" if done else "FAILED",
                    seconds=outcome.value if isinstance(outcome, Finished) else None,
                    message="" if isinstance(outcome, Finished) else outcome.message,
                    backend=backend,
                    versions=versions,
                ),
            )


def worker(
    table: str, select: str, backend: str, numerics: Numerics, lnc: int
) -> Callable[[OpCall], float]:
    """In a worker process: how one call is compiled.

    Args:
        table: target text of the op table.
        select: target text of what makes `backend` the process's.
        lnc: NEURON_LOGICAL_NC_CONFIG of the process; 0 leaves it.
    """
    if lnc:
        import os

        os.environ["NEURON_LOGICAL_NC_CONFIG"] = str(lnc)
    resolve_target(select)(backend)
    ops = resolve_target(table)
    return partial(_compile, ops, numerics)


def _compile(ops: Any, numerics: Numerics, call: OpCall) -> float:
    values = arguments_of(call)
    start = time.perf_counter()
    ops.ops[call.op](*values, numerics=numerics)
    return time.perf_counter() - start


def arguments_of(call: OpCall) -> tuple[Any, ...]:
    """Values of the call's shapes: a compiler looks at nothing else.

    Raises:
        InputError: an argument that cannot be made.
    """
    values = [_value(argument) for argument in call.arguments]
    if call.op == _GROUP_SIZES:
        values[2] = _one_row_each(call)
    return tuple(values)


def _value(argument: Argument) -> Any:
    if argument.kind == "scalar":
        return ast.literal_eval(argument.text)
    if argument.kind == "quantised":
        codes, scale = argument.shapes
        return QuantisedWeight(
            torch.zeros(codes, dtype=torch.uint8),
            torch.full(scale, _UNIT_SCALE, dtype=torch.uint8),
            argument.text,  # type: ignore[arg-type]
        )
    dtype = getattr(torch, argument.text, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError("compile plan", "dtype", argument.text, "a dtype of torch is needed")
    return torch.full(argument.shape, _FILL.get(dtype, 0), dtype=dtype)


def _one_row_each(call: OpCall) -> torch.Tensor:
    """Group sizes of a decode step: each routed row has an expert of its own, as far as they go."""
    rows, experts = call.arguments[0].shape[0], call.arguments[2].shape[0]
    sizes = torch.zeros(experts, dtype=torch.int64)
    for row in range(rows):
        sizes[row % experts] += 1
    return sizes
