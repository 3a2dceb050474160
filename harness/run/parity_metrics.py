"""Deterministic metrics of a parity run: status counts an op, and what the interpreter counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from harness.core.metric import Direction, Metric, MetricKind
from harness.core.results import ParityResult

__all__ = ["parity_metrics"]

# Counters that depend on the kernels alone; estimates may change with the cost model.
_SUMMED = {"launches": "1", "instructions": "1", "dma_bytes": "bytes"}
_HIGH_WATER = {"sbuf_peak_bytes": "bytes", "psum_peak_bytes": "bytes"}


def parity_metrics(results: Iterable[ParityResult], preset: str) -> tuple[Metric, ...]:
    """`parity.<preset>.<op>.<status>` with its number of cases, and per op the counters' sums or
    maxima over its cases. Any change of one is a verdict."""
    by_op: dict[str, list[ParityResult]] = {}
    for result in results:
        by_op.setdefault(result.op, []).append(result)
    return tuple(
        metric
        for op, of_op in sorted(by_op.items())
        for metric in _metrics_of(f"parity.{preset}.{op}", of_op)
    )


def _metrics_of(path: str, results: list[ParityResult]) -> Iterator[Metric]:
    for status, count in sorted(Counter(r.status.value for r in results).items()):
        yield _exactly(f"{path}.{status}", count, "1")
    for name, unit in _SUMMED.items():
        counted = [r.counters[name] for r in results if name in r.counters]
        if counted:
            yield _exactly(f"{path}.{name}", sum(counted), unit)
    for name, unit in _HIGH_WATER.items():
        counted = [r.counters[name] for r in results if name in r.counters]
        if counted:
            yield _exactly(f"{path}.{name}", max(counted), unit)


def _exactly(name: str, value: float, unit: str) -> Metric:
    return Metric(name, (float(value),), unit, Direction.EQUAL, MetricKind.DETERMINISTIC)
