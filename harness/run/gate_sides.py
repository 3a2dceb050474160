"""The two sides of a gate: runs with their metrics, found on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, MissingEvidenceError
from harness.core.metric import Metric
from harness.run.metrics import metric_from_payload
from harness.run.store import read_ledger, read_run

__all__ = ["GateRun", "environment_difference", "interleaved", "read_side"]

_METRIC_FILE = "metric.jsonl"


@dataclass(frozen=True, slots=True)
class GateRun:
    """One run as a gate sees it.

    Attributes:
        start: ISO 8601; orders the runs of a side.
        environment: fingerprint of the run.
        metrics: by name.
    """

    run_id: str
    start: str
    environment: Mapping[str, Any]
    metrics: Mapping[str, Metric]


def read_side(directory: Path) -> tuple[GateRun, ...]:
    """A run directory, or every run directory within, in order of their start.

    Raises:
        MissingEvidenceError: the directory does not exist or holds no run with metrics.
        InputError: a broken record.
    """
    if not directory.is_dir():
        raise MissingEvidenceError(
            f"{directory}: there is no such directory; name a run, or a directory of runs"
        )
    folders = [directory] if (directory / _METRIC_FILE).exists() else sorted(directory.iterdir())
    runs = [_read(folder) for folder in folders if (folder / _METRIC_FILE).exists()]
    if not runs:
        raise MissingEvidenceError(
            f"{directory}: holds no {_METRIC_FILE}; write one with `neuron-harness run` or "
            "`gate --write-baseline`"
        )
    return tuple(sorted(runs, key=lambda run: run.start))


def interleaved(base: Sequence[GateRun], candidate: Sequence[GateRun]) -> bool:
    """Whether run i of both sides ran before run i + 1 of either, so that pairs share drift."""
    if len(base) != len(candidate):
        return False
    pairs = [
        sorted((ours.start, theirs.start)) for ours, theirs in zip(base, candidate, strict=True)
    ]
    return all(earlier[1] < later[0] for earlier, later in pairwise(pairs))


def environment_difference(
    base: Sequence[GateRun], candidate: Sequence[GateRun], fields: Sequence[str]
) -> str:
    """The first field in which the runs were not made alike, in words; empty where none."""
    for name in fields:
        values = {str(run.environment.get(name)) for run in (*base, *candidate)}
        if len(values) > 1:
            return f"environment differs in {name}: {', '.join(sorted(values))}"
    return ""


def _read(folder: Path) -> GateRun:
    body = read_run(folder)
    path = folder / _METRIC_FILE
    metrics = {metric.name: metric for metric in _metrics(path)}
    environment = body.get("environment")
    return GateRun(
        run_id=body["run_id"],
        start=str(body.get("start", "")),
        environment=environment if isinstance(environment, dict) else {},
        metrics=metrics,
    )


def _metrics(path: Path) -> Iterator[Metric]:
    for record in read_ledger(path).records:
        try:
            yield metric_from_payload(record.payload)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(path, f"record {record.key!r}", str(error), "not a metric") from error
