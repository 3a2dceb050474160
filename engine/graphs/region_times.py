"""Where a step's time goes: a table of regions and sub-regions (port.md R4, R24).

A region is a kind of layer; layers of a kind do the same work. Its sub-regions are the parts
between the split points: Engram, attention, experts. What is left of a region is mixing of the
residual streams and norms. Times are the host's, so on an asynchronous device they are those of
the launches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from engine.config.model import LayerRole
from harness.core.errors import UsageError

__all__ = ["VARIABLE", "RegionTimes", "kind_of_layer", "report_regions", "wants_region_timing"]

VARIABLE = "DEEPINFER_NEURON_REGION_TIMING"

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Total:
    calls: int = 0
    ns: int = 0


class RegionTimes:
    """Sums over calls, by region and sub-region; "" is a region as a whole."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], _Total] = {}

    def timed(self, region: str, part: str, task: Callable[P, R]) -> Callable[P, R]:
        """`task`, whose calls are counted and timed."""
        total = self._totals.setdefault((region, part), _Total())

        def run(*arguments: P.args, **named: P.kwargs) -> R:
            start_ns = time.perf_counter_ns()
            result = task(*arguments, **named)
            total.ns += time.perf_counter_ns() - start_ns
            total.calls += 1
            return result

        return run

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
    """Whether the variable is 1.

    Raises:
        UsageError: it is neither 0, 1 nor empty.
    """
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{VARIABLE}={text!r}: write 1 for a table of region times, 0 for none")
    return text == "1"


def report_regions(times: RegionTimes | None) -> None:
    """Write the table to stderr, where a run's own output is not disturbed."""
    if times is not None:
        sys.stderr.write(times.table() + "\n")
        sys.stderr.flush()
