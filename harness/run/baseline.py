"""Writes the deterministic metrics of a run as a baseline that can be committed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.metric import MetricKind
from harness.core.record import RunRecord, strict_json, to_plain
from harness.run.gate_sides import read_side

__all__ = ["write_baseline"]

# A baseline says what its counts depend on, not on whose machine they were made.
_KEPT_ENVIRONMENT = ("origin",)


def write_baseline(run: Path, target: Path) -> int:
    """Write `run.json` and `metric.jsonl` below `target`; returns the number of metrics.

    The same run gives the same bytes. Timings are left out: they belong to one machine.

    Raises:
        MissingEvidenceError: the run has no deterministic metric.
        UsageError: the target cannot be written.
    """
    (source,) = read_side(run)
    environment = {name: source.environment.get(name) for name in _KEPT_ENVIRONMENT}
    metrics = [
        metric for metric in source.metrics.values() if metric.kind is MetricKind.DETERMINISTIC
    ]
    if not metrics:
        raise MissingEvidenceError(f"{run}: holds no deterministic metric")
    lines = [
        RunRecord(
            "metric", source.run_id, metric.name, source.start, environment, to_plain(metric)
        ).to_line()
        for metric in sorted(metrics, key=lambda metric: metric.name)
    ]
    about: Mapping[str, Any] = {
        "run_id": source.run_id,
        "command": ["neuron-harness", "gate", "--write-baseline"],
        "start": source.start,
        "environment": environment,
    }
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "run.json").write_text(strict_json(about) + "\n", encoding="utf-8")
        (target / "metric.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--write-baseline {target}: {error.strerror}") from error
    return len(metrics)
