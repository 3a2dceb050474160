"""Metrics of a run, read off its records: what a gate can compare.

Names are dotted paths. `status`, `instructions`, `bytes` and the like are deterministic and have
one value; timings have one value a run, because the unit of replication is a run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.core.latency import measure_requests
from harness.core.metric import Direction, Metric, MetricKind
from harness.core.record import RunRecord
from harness.core.results import PointStatus

__all__ = ["metric_from_payload", "metrics_of_run", "setting_path"]

_REFERENCE_TABLE = "references"
_HIGHER_IS_BETTER = ("mean_acceptance_length",)


def metrics_of_run(
    parity: Iterable[RunRecord], tokens: Iterable[RunRecord], sweep: Iterable[RunRecord]
) -> tuple[Metric, ...]:
    """Every metric of one run, in the order of its records.

    Raises:
        ValueError: two records make one metric name.
    """
    metrics: dict[str, Metric] = {}
    for metric in (*_of_parity(parity), *_of_tokens(tokens), *_of_sweep(sweep)):
        if metric.name in metrics:
            raise ValueError(f"metric {metric.name} is made by two records")
        metrics[metric.name] = metric
    return tuple(metrics.values())


def metric_from_payload(payload: Mapping[str, Any]) -> Metric:
    """A metric as its record holds it.

    Raises:
        ValueError, KeyError: the payload is no metric.
    """
    return Metric(
        name=payload["name"],
        values=tuple(payload["values"]),
        unit=payload["unit"],
        direction=Direction(payload["direction"]),
        kind=MetricKind(payload["kind"]),
    )


def setting_path(config: Mapping[str, Any]) -> str:
    """ "fast.cp=2", with everything else only where it is not the usual."""
    parts = [str(config["numerics"]), f"cp={config['cp']}"]
    if config.get("ep", 0) not in (0, config["cp"]):
        parts.append(f"ep={config['ep']}")
    table = str(list(config["ops"])[-1]).partition(".")[0]
    if table != _REFERENCE_TABLE:
        parts.append(f"ops={table}")
    if config.get("context_buckets"):
        parts.append("buckets=" + "+".join(map(str, config["context_buckets"])))
    if config.get("speculative"):
        parts.append(str(config["speculative"]))
    if config.get("prefill", "as-decode") != "as-decode":
        parts.append(f"prefill={config['prefill']}")
    if not config.get("enforce_eager", True):
        backend = config.get("compile_backend")
        parts.append(f"compiled={backend}" if backend else "compiled")
    if config.get("moe_capacity"):
        parts.append(f"capacity={config['moe_capacity']}")
    return ".".join(parts)


def _of_parity(records: Iterable[RunRecord]) -> Iterator[Metric]:
    for record in records:
        path = f"parity.{record.payload['case_id']}"
        yield _status(f"{path}.status", record.payload["status"])
        yield from _counts(path, record.payload.get("counters") or {})


def _of_tokens(records: Iterable[RunRecord]) -> Iterator[Metric]:
    for record in records:
        path = f"tokens.{record.key.replace('/', '.')}"
        yield _status(f"{path}.status", record.payload["status"])
        yield from _counts(path, record.payload.get("counters") or {})


def _of_sweep(records: Iterable[RunRecord]) -> Iterator[Metric]:
    for record in records:
        config = record.payload["config"]
        path = f"sweep.{setting_path(config)}.in={config['input_len']}.out={config['output_len']}"
        if config.get("concurrency", 1) != 1:
            path += f".concurrency={config['concurrency']}"
        if config.get("request_rate"):
            path += f".rate={config['request_rate']:g}"
        if config.get("mode", "offline") != "offline":
            path += f".{config['mode']}"
        yield _status(f"{path}.status", record.payload["status"])
        if record.payload["status"] == PointStatus.OK:
            yield from _counts(path, record.payload.get("counters") or {})
            yield from _timings(path, record.payload["requests"])


def _timings(path: str, requests: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    samples = measure_requests(requests)
    for name, values in (
        ("ttft_ms", samples.ttft_ms),
        ("tpot_ms", samples.tpot_ms),
        ("e2el_ms", samples.e2el_ms),
    ):
        if values:
            median = statistics.median(values)
            yield Metric(f"{path}.{name}", (median,), "ms", Direction.LOWER, MetricKind.TIMING)


def _status(name: str, status: str) -> Metric:
    return Metric(name, (status,), "status", Direction.EQUAL, MetricKind.DETERMINISTIC)


def _counts(path: str, counters: Mapping[str, float]) -> Iterator[Metric]:
    for name, value in sorted(counters.items()):
        if name.startswith(("min_", "max_")):
            continue  # extremes of data: held against a limit of their own, not against a baseline
        unit = "bytes" if "bytes" in name else "1"
        direction = Direction.EQUAL if name.startswith("num_") else Direction.LOWER
        if name in _HIGHER_IS_BETTER:
            direction = Direction.HIGHER
        yield Metric(f"{path}.{name}", (value,), unit, direction, MetricKind.DETERMINISTIC)
