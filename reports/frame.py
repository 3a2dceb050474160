"""Records as tables of pandas, one row a record, with the numbers that are derived from them.

Derived numbers (TTFT, TPOT, ratios, shares) exist only here, computed from raw samples through
`harness.core.latency`: a corrected formula re-renders old runs. Absent values are None, never NaN.
Every frame starts with `anchor`, `source` and `key` (where the record stands) and `origin`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from harness.core.latency import Samples, failure_of, latency_of, measure_requests
from harness.core.results import PointStatus
from reports.axes import SWEEP_AXES
from reports.interval import interval_of
from reports.ledger import Entry, Ledger
from reports.origin import origin_of
from reports.step_times import account_of

__all__ = ["COMMON_COLUMNS", "frame_of", "rows_of"]

COMMON_COLUMNS = ("anchor", "source", "key", "origin")


def frame_of(ledger: Ledger, kind: str) -> pd.DataFrame:
    """The records of one kind; columns are there even when no record is."""
    rows = rows_of(ledger, kind)
    columns = list(rows[0]) if rows else list(COMMON_COLUMNS)
    return pd.DataFrame(rows, columns=columns, dtype=object)


def rows_of(ledger: Ledger, kind: str) -> list[dict[str, Any]]:
    """The records of one kind as flat mappings, in ledger order. To be read, not changed."""
    if kind not in ledger.derived:
        entries, describe = ledger.of_kind(kind), _ROWS.get(kind, _plain)
        ledger.derived[kind] = [{**_common(entry), **describe(entry.payload)} for entry in entries]
    return ledger.derived[kind]


def _common(entry: Entry) -> dict[str, Any]:
    return {
        "anchor": entry.anchor,
        "source": entry.source,
        "key": entry.key,
        "origin": origin_of(entry).value,
    }


def _parity(payload: Mapping[str, Any]) -> dict[str, Any]:
    errors = payload["errors"]
    worst = max(errors, key=lambda error: error["budget_ratio"], default=None)
    elapsed_ms = interval_of(payload.get("elapsed_ms") or ())
    return {
        "case_id": payload["case_id"],
        "op": payload["op"],
        "backend": payload["backend"],
        "status": payload["status"],
        "message": payload.get("message", ""),
        "output": worst["name"] if worst else None,
        "budget_ratio": worst["budget_ratio"] if worst else None,
        "max_abs": max((error["max_abs"] for error in errors), default=None),
        "worst_index": tuple(worst["worst_index"]) if worst else None,
        "worst_kernel_value": worst["worst_kernel_value"] if worst else None,
        "worst_golden_value": worst["worst_golden_value"] if worst else None,
        "num_compared": sum(error["num_compared"] for error in errors),
        "num_mismatched": worst.get("num_mismatched") if worst else None,
        "ulp_histogram": _summed(error.get("ulp_histogram") or {} for error in errors),
        "nulls_rejected": sum(map(bool, (payload.get("nulls") or {}).values())),
        "nulls_judged": len(payload.get("nulls") or {}),
        "num_fallbacks": payload.get("num_fallbacks", 0),
        "elapsed_ms": elapsed_ms.median if elapsed_ms else None,
        "counters": payload.get("counters") or {},
        "error_maps": payload.get("error_maps") or {},
    }


def _tokens(payload: Mapping[str, Any]) -> dict[str, Any]:
    positions = tuple(payload["positions"])
    return {
        "prompt": payload["prompt"],
        "candidate": payload["candidate"],
        "oracle": payload["oracle"],
        "status": payload["status"],
        "message": payload.get("message", ""),
        "phase": payload.get("phase"),
        "first_divergence": payload.get("first_divergence"),
        "prompt_length": payload.get("prompt_length"),
        "prefix_length": payload.get("prefix_length", 0),
        "num_generated": payload.get("num_generated", 0),
        "positions": positions,
        "forced_match_rate": payload.get("forced_match_rate"),
        "max_logit_error": payload.get("max_logit_error"),
        "logit_bound": payload.get("logit_bound"),
        "noise": payload.get("noise"),
        "mean_kl_nats": payload.get("mean_kl_nats"),
        "margins": tuple(payload.get("margins") or ()),
        "counters": payload.get("counters") or {},
    }


def _sweep(payload: Mapping[str, Any]) -> dict[str, Any]:
    config = payload["config"]
    everything = measure_requests(payload["requests"])
    # What a failed point still measured is no latency of the setting; its requests are counted.
    samples = everything if payload["status"] == PointStatus.OK else Samples()
    row: dict[str, Any] = {axis: config.get(axis) for axis in SWEEP_AXES}
    row["ops"] = _ops_name(config.get("ops"))
    row["ep"] = config.get("ep") or config.get("cp")  # 0 means the same as cp
    row["prefill"] = config.get("prefill") or "as-decode"  # absent where it is the default
    row |= {
        "config": config,
        "status": payload["status"],
        "message": payload.get("message", ""),
        "ttft_ms": interval_of(samples.ttft_ms),
        "tpot_ms": interval_of(samples.tpot_ms),
        "e2el_ms": interval_of(samples.e2el_ms),
        "itl_samples_ms": samples.itl_ms,
        "ttft_samples_ms": samples.ttft_ms,
        "tpot_samples_ms": samples.tpot_ms,
        "num_completed": everything.num_completed,
        "num_failed": everything.num_failed,
        "failures": everything.failures,
        "num_warmups": len(payload.get("warmups") or ()),
        "compile_events": payload.get("compile_events"),
        "client_cpu_share": _largest(payload["requests"], "client_cpu_share"),
        "doubts": _doubts(payload.get("facts") or {}),
        "padding_share": _largest(payload["requests"], "padding_share"),
        "output_tokens_per_s": _output_tokens_per_s(payload["requests"])
        if samples.ttft_ms
        else None,
        "counters": payload.get("counters") or {},
    }
    return row


def _metric(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": payload["name"],
        "values": tuple(payload["values"]),
        "unit": payload["unit"],
        "direction": payload.get("direction"),
        "metric_kind": payload["kind"],
    }


def _gate(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "metric": payload["metric"],
        "status": payload["status"],
        "message": payload.get("message", ""),
        "unit": payload.get("unit", ""),
        "baseline": payload.get("baseline"),
        "candidate": payload.get("candidate"),
        "effect": payload.get("effect"),
        "lower_bound": payload.get("lower_bound"),
        "p_value": payload.get("p_value"),
        "num_pairs": payload.get("num_pairs", 0),
        "advisory": bool(payload.get("advisory", False)),
    }


def _stage(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": payload["name"],
        "status": payload["status"],
        "elapsed_s": payload["elapsed_s"],
        "message": payload.get("message", ""),
    }


def _step(payload: Mapping[str, Any]) -> dict[str, Any]:
    account = account_of(payload)
    return {
        "setting": payload["setting"],
        "config": payload.get("config") or {},
        "status": payload.get("status", ""),
        "num_steps": len(payload["step_ns"]),
        "step_ms": account.step_ms,
        "untimed_step_ms": account.untimed_step_ms,
        "unexplained_share": account.unexplained_share,
        "part_ms": {line.name: line.ms for line in account.lines},
        "part_share": {line.name: line.share for line in account.lines},
        "op_ms": {op.name: op.ms for op in account.ops},
        "op_estimate_ms": {op.name: op.estimate_ms for op in account.ops},
        "calibration": payload["calibration"],
    }


def _plain(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A kind without columns of its own: what of its payload fits in a cell."""
    return {
        name: value
        for name, value in payload.items()
        if value is None or isinstance(value, (str, int, float))
    }


_ROWS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "parity": _parity,
    "tokens": _tokens,
    "sweep": _sweep,
    "metric": _metric,
    "gate": _gate,
    "stage": _stage,
    "step": _step,
}


def _ops_name(ops: object) -> str | None:
    """ "kernels" for ["references.op_table:TABLE", "kernels.op_table:TABLE"]: the last on top."""
    if isinstance(ops, list) and ops:
        return str(ops[-1]).partition(".")[0]
    return None if ops is None else str(ops)


def _summed(histograms: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for histogram in histograms:
        for distance, count in histogram.items():
            total[distance] = total.get(distance, 0) + count
    return total


def _largest(requests: list[Mapping[str, Any]], field: str) -> float | None:
    return max(
        (request[field] for request in requests if request.get(field) is not None), default=None
    )


def _doubts(facts: Mapping[str, float]) -> str:
    """What may have spoiled a measurement, in words."""
    doubts = []
    if facts.get("is_contaminated"):
        share = facts["other_work_share"]
        doubts.append(f"others used {share:.0%} of this machine's cores")
    if facts.get("first_repeat_differs"):
        doubts.append(f"the first repeat took {facts['first_repeat_ratio']:.2f} × the others")
    return "; ".join(doubts)


def _output_tokens_per_s(requests: list[Mapping[str, Any]]) -> float | None:
    """Tokens of completed requests over the time in which any request of the point was in flight.

    Under steady load that is D of measurement.md §3, first send to last response; where the
    points of a setting are interleaved, the time of the other points is not this one's.
    """
    timed = [request for request in requests if request.get("token_ns")]
    spans = sorted((request["t_send_ns"], request["token_ns"][-1]) for request in timed)
    busy_ns, end = 0, 0
    for start, stop in spans:
        busy_ns += max(0, stop - max(start, end))
        end = max(end, stop)
    completed = [latency_of(request) for request in timed if failure_of(request) is None]
    num_tokens = sum(latency.num_tokens for latency in completed)
    return num_tokens / (busy_ns / 1e9) if busy_ns > 0 else None
