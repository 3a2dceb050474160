"""Keeps `metric.jsonl` of a run in step with its other records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.record import to_plain

if TYPE_CHECKING:
    from harness.run.store import RunStore

__all__ = ["record_metrics"]


def record_metrics(store: RunStore) -> int:
    """Derive the run's metrics from its records, append what changed, return how many there are."""
    from harness.run.metrics import metrics_of_run

    metrics = metrics_of_run(*(store.read(kind).records for kind in ("parity", "tokens", "sweep")))
    known = {record.key: record.payload for record in store.read("metric").records}
    changed = {m.name: m for m in metrics if known.get(m.name) != to_plain(m)}
    if changed:
        store.append_all("metric", changed)
    return len(metrics)
