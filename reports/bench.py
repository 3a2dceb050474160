"""The bench figures of each measured point: a step's time and what a step does.

TPOT x acceptance makes a speculative setting comparable with a plain one: about what one step of
it takes. Every count is what the engine or the server told; what nobody told is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.latency import failure_of, measure_requests
from harness.core.results import PointStatus
from reports.document import Link
from reports.interval import Interval, interval_of
from reports.ledger import Ledger
from reports.origin import origin_of

__all__ = ["COUNTS", "BenchRow", "bench_records", "bench_rows", "setting_name", "step_ms"]

# Counter of a point -> what its column says.
COUNTS = {
    "collectives": "collectives / step",
    "regions": "regions / step",
    "launches": "launches / step",
    "prefill_launches": "prefill launches / prompt",
    "fallbacks": "fallbacks / step",
    "compile_events": "compile events",
    "moe_overflows": "MoE overflows",
    "moe_dense_reruns": "MoE dense reruns",
}


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One measured point.

    Attributes:
        setting: everything but the shape of the requests.
        step_ms: time of a decode step; None where tokens are not told apart by steps.
        acceptance: tokens a step gives; 1 where nothing is drafted, None where it is not known.
        acceptance_by_place: share of verified blocks whose draft at each place was accepted.
        is_plain: nothing is drafted.
        counts: of COUNTS, those that were told.
    """

    key: str
    link: Link
    origin: str
    setting: str
    input_len: int
    output_len: int | None
    concurrency: int | None
    request_rate: float | None
    step_ms: Interval | None
    tpot_ms: Interval | None
    acceptance: float | None
    acceptance_by_place: tuple[float, ...]
    is_plain: bool
    counts: Mapping[str, float]

    @property
    def tpot_times_acceptance_ms(self) -> float | None:
        """None where either is not known."""
        if self.tpot_ms is None or self.acceptance is None:
            return None
        return self.tpot_ms.median * self.acceptance


def bench_rows(ledger: Ledger) -> list[BenchRow]:
    """Measured points of a run: setting by setting, input lengths within."""
    rows = [
        _row(entry.key, Link(entry.anchor, entry.source), origin_of(entry).value, entry.payload)
        for entry in ledger.of_kind("sweep")
        if entry.payload["status"] == PointStatus.OK
    ]
    order = {row.setting: place for place, row in reversed(list(enumerate(rows)))}
    return sorted(rows, key=lambda row: (order[row.setting], row.input_len))


def bench_records(ledger: Ledger) -> list[dict[str, Any]]:
    """The same as flat mappings with the same names in each; what is not known is None."""
    return [
        {
            "key": row.key,
            "setting": row.setting,
            "shown_on": row.origin,
            "input_len": row.input_len,
            "output_len": row.output_len,
            "concurrency": row.concurrency,
            "request_rate": row.request_rate,
            "step_median_ms": row.step_ms.median if row.step_ms else None,
            "tpot_median_ms": row.tpot_ms.median if row.tpot_ms else None,
            "acceptance": row.acceptance,
            "acceptance_by_place": " ".join(f"{share:.3f}" for share in row.acceptance_by_place)
            or None,
            "tpot_times_acceptance_ms": row.tpot_times_acceptance_ms,
            **{name: row.counts.get(name) for name in COUNTS},
        }
        for row in bench_rows(ledger)
    ]


def setting_name(config: Mapping[str, Any]) -> str:
    """ "fast cp=2 ops=kernels dspark online": what one engine or server is."""
    parts = [str(config.get("numerics")), f"cp={config.get('cp')}"]
    if config.get("attached"):
        parts = [str(config.get("served_model") or "served"), f"at {config['attached']}"]
    if config.get("ep") not in (None, 0, config.get("cp")):
        parts.append(f"ep={config['ep']}")
    ops = config.get("ops") or []
    if len(ops) > 1:
        parts.append("ops=" + str(ops[-1]).partition(".")[0])
    if config.get("context_buckets"):
        parts.append("buckets=" + ",".join(map(str, config["context_buckets"])))
    if config.get("speculative"):
        parts.append(str(config["speculative"]))
    if config.get("confidence_threshold"):
        parts.append(f"cut={config['confidence_threshold']:g}")
    if config.get("prefill", "as-decode") != "as-decode":
        parts.append(f"prefill={config['prefill']}")
    if not config.get("enforce_eager", True):
        backend = config.get("compile_backend")
        parts.append(f"compiled={backend}" if backend else "compiled")
    if config.get("moe_capacity"):
        parts.append(f"capacity={config['moe_capacity']}")
    if config.get("mode") == "online" and not config.get("attached"):
        parts.append("online")
    return " ".join(parts)


def step_ms(request: Mapping[str, Any]) -> float | None:
    """Mean time of a request's decode steps; None where nobody told how many there were."""
    stamps: Sequence[int] = request["token_ns"]
    num_steps = request.get("num_decode_steps")
    if num_steps is None and request.get("count_source") == "engine":
        num_steps = len(set(stamps)) - 1  # tokens of one step share its stamp
    return (stamps[-1] - stamps[0]) / 1e6 / num_steps if num_steps else None


def _row(key: str, link: Link, origin: str, payload: Mapping[str, Any]) -> BenchRow:
    config = payload["config"]
    completed = [request for request in payload["requests"] if failure_of(request) is None]
    steps = [ms for request in completed if (ms := step_ms(request)) is not None]
    is_plain = config.get("speculative") == ""
    counters = payload.get("counters") or {}
    told = {**counters, "compile_events": payload.get("compile_events")}
    return BenchRow(
        key=key,
        link=link,
        origin=origin,
        setting=setting_name(config),
        input_len=config["input_len"],
        output_len=config.get("output_len"),
        concurrency=config.get("concurrency"),
        request_rate=config.get("request_rate"),
        step_ms=interval_of(steps),
        tpot_ms=interval_of(measure_requests(completed).tpot_ms),
        acceptance=1.0 if is_plain else _acceptance(counters),
        acceptance_by_place=_acceptance_by_place(counters),
        is_plain=is_plain,
        counts={name: told[name] for name in COUNTS if told.get(name) is not None},
    )


def _acceptance(counters: Mapping[str, float]) -> float | None:
    value = counters.get("mean_acceptance_length")
    return None if value is None else float(value)


def _acceptance_by_place(counters: Mapping[str, float]) -> tuple[float, ...]:
    """() where nothing was drafted, or nobody told."""
    blocks = counters.get("num_drafts")
    if not blocks:
        return ()
    counts: list[float] = []
    while (name := f"accepted_at_{len(counts)}") in counters:
        counts.append(counters[name] / blocks)
    return tuple(counts)
