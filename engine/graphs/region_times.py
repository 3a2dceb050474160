"""Where a step's time goes: a table of regions and sub-regions (port.md R4, R24).

A region is a kind of layer; layers of a kind do the same work. Its sub-regions are the parts
between the split points: Engram, attention, experts. What is left of a region is mixing of the
residual streams and norms. Times are the host's; on an asynchronous device the borders of regions
wait for it, ops and collectives between them do not.

Beside the sums over a run, each step gives its own account: of every region, sub-region and
collective the time spent in it and in no other (`StepTimes`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from engine.config.model import LayerRole
from harness.core.errors import UsageError

__all__ = [
    "COLLECTIVE",
    "OP",
    "REGION",
    "SILENT",
    "STEP",
    "VARIABLE",
    "RegionTimes",
    "StepTimes",
    "kind_of_layer",
    "report_regions",
    "wants_region_timing",
]

VARIABLE = "DEEPINFER_NEURON_REGION_TIMING"
SILENT = "silent"
"""A value that times without a table at the end: for who reads the steps' own accounts."""

REGION, COLLECTIVE, OP, STEP = "region", "collective", "op", "step"
StepTimes = Mapping[tuple[str, str], tuple[int, int]]
"""(REGION, "layer … / attention") and so on -> (calls, ns). Regions and collectives are disjoint:
none's time holds another's. Ops are counted whole, within regions; STEP is the step as a whole."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Total:
    calls: int = 0
    ns: int = 0


class RegionTimes:
    """Sums over calls, by region and sub-region; "" is a region as a whole.

    Args:
        wait: until the device has done what it was told; called at the borders of regions.
        clock_ns: monotonic.
    """

    def __init__(
        self,
        wait: Callable[[], object] | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._totals: dict[tuple[str, str], _Total] = {}
        self._wait = wait
        self._clock_ns = clock_ns
        self._step: dict[tuple[str, str], _Total] = {}
        # Time that parts inside the present part have taken, for each part that is open.
        self._inner_ns: list[int] = []

    def timed(self, region: str, part: str, task: Callable[P, R]) -> Callable[P, R]:
        """`task`, whose calls are counted and timed."""
        total = self._totals.setdefault((region, part), _Total())
        key = (REGION, f"{region} / {part}" if part else region)

        def run(*arguments: P.args, **named: P.kwargs) -> R:
            self._settle()
            start_ns = self._opened()
            try:
                result = task(*arguments, **named)
            finally:
                self._settle()
                elapsed_ns = self._closed(key, start_ns)
            total.ns += elapsed_ns
            total.calls += 1
            return result

        return run

    def timed_collective(self, gather: Callable[P, R]) -> Callable[P, R]:
        """A group's `gather(part, label)`; labels are "<place>.<layer>", times go by place."""

        def run(*arguments: P.args, **named: P.kwargs) -> R:
            label = named["label"] if "label" in named else arguments[1]
            place = str(label).partition(".")[0]
            start_ns = self._opened()
            try:
                return gather(*arguments, **named)
            finally:
                self._closed((COLLECTIVE, place), start_ns)

        return run

    def timed_op(self, name: str, op: Callable[..., R]) -> Callable[..., R]:
        """An op of the table, timed within the region that calls it."""

        def run(*arguments: Any) -> R:
            start_ns = self._clock_ns()
            try:
                return op(*arguments)
            finally:
                self._count((OP, name), self._clock_ns() - start_ns)

        return run

    def timed_step(self, task: Callable[P, R]) -> Callable[P, tuple[R, StepTimes]]:
        """`task` beside the account of the one step it makes."""

        def run(*arguments: P.args, **named: P.kwargs) -> tuple[R, StepTimes]:
            self._step.clear()
            self._inner_ns.clear()
            start_ns = self._clock_ns()
            result = task(*arguments, **named)
            self._count((STEP, ""), self._clock_ns() - start_ns)
            return result, {key: (one.calls, one.ns) for key, one in self._step.items()}

        return run

    def _settle(self) -> None:
        if self._wait is not None:
            self._wait()

    def _opened(self) -> int:
        self._inner_ns.append(0)
        return self._clock_ns()

    def _closed(self, key: tuple[str, str], start_ns: int) -> int:
        elapsed_ns = self._clock_ns() - start_ns
        self._count(key, elapsed_ns - self._inner_ns.pop())
        if self._inner_ns:
            self._inner_ns[-1] += elapsed_ns
        return elapsed_ns

    def _count(self, key: tuple[str, str], ns: int) -> None:
        one = self._step.setdefault(key, _Total())
        one.calls += 1
        one.ns += ns

    def clear(self) -> None:
        """Forget all calls, e.g. those of a warm-up."""
        for total in self._totals.values():
            total.calls = total.ns = 0

    def calls(self) -> dict[tuple[str, str], int]:
        """How often each region and sub-region ran."""
        return {key: total.calls for key, total in self._totals.items()}

    def total_ms(self) -> dict[tuple[str, str], float]:
        """Time spent in each."""
        return {key: total.ns / 1e6 for key, total in self._totals.items()}

    def table(self) -> str:
        """One line a region and sub-region that ran, sub-regions indented."""
        lines = [f"{'region':<46} {'calls':>8} {'total ms':>10} {'mean us':>9}"]
        for (region, part), total in self._totals.items():
            if total.calls:
                name = f"  {part}" if part else region
                mean_us = total.ns / total.calls / 1e3
                lines.append(f"{name:<46} {total.calls:>8} {total.ns / 1e6:>10.2f} {mean_us:>9.1f}")
        return "\n".join(lines)


def kind_of_layer(role: LayerRole) -> str:
    """The kind whose graph a layer shares, e.g. "layer ratio 2 owner indexer"."""
    words = ["layer", f"ratio {role.ratio}"]
    words += ["owner"] if role.owns_kv else []
    words += ["indexer"] if role.runs_indexer else []
    words += ["candidates"] if role.publishes_candidates else []
    words += ["among candidates"] if role.uses_candidates else []
    words += ["engram"] if role.engram_index is not None else []
    words += ["tap"] if role.is_tap else []
    return " ".join(words)


def wants_region_timing(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the variable is 1, or asks for timing without the table.

    Raises:
        UsageError: it is neither 0, 1, silent nor empty.
    """
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    if text not in ("", "0", "1", SILENT):
        raise UsageError(f"{VARIABLE}={text!r}: write 1 for a table of region times, 0 for none")
    return text in ("1", SILENT)


def report_regions(times: RegionTimes | None) -> None:
    """Write the table to stderr, where a run's own output is not disturbed.

    A rank's process has the environment of its fork server: only a value that was set before the
    first engine reaches it, which is how users set it.
    """
    if times is not None and os.environ.get(VARIABLE) == "1":
        sys.stderr.write(times.table() + "\n")
        sys.stderr.flush()
