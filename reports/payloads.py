"""What a payload must hold before a document may speak about it.

Records may come from an older or newer writer: fields beyond these are kept, fields within these
are required. A status nobody knows is refused here, since it would count neither as red nor green.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.core.record import RunRecord
from harness.core.results import PointStatus
from harness.core.status import GateStatus, OpStatus, PositionStatus, RunStatus

__all__ = ["POINT_STATUSES", "check_payload"]

POINT_STATUSES = (
    PointStatus.OK,
    PointStatus.FAILED,
    PointStatus.PRUNED,
    PointStatus.CRASHED,
)

_TEXT, _NUMBER, _LIST, _MAPPING = (str,), (int, float), (list,), (dict,)
_OPTIONAL_NUMBER = (int, float, type(None))

# kind -> field -> JSON types it may have.
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "plan": {"kind": _TEXT, "keys": _LIST},
    "parity": {
        "case_id": _TEXT,
        "op": _TEXT,
        "backend": _TEXT,
        "status": _TEXT,
        "errors": _LIST,
    },
    "tokens": {
        "prompt": _TEXT,
        "candidate": _TEXT,
        "oracle": _TEXT,
        "status": _TEXT,
        "positions": _LIST,
    },
    "sweep": {"config": _MAPPING, "status": _TEXT, "requests": _LIST},
    "metric": {"name": _TEXT, "values": _LIST, "unit": _TEXT, "kind": _TEXT},
    "gate": {"metric": _TEXT, "status": _TEXT},
    "stage": {"name": _TEXT, "status": _TEXT, "elapsed_s": _OPTIONAL_NUMBER},
    "step": {
        "setting": _TEXT,
        "calibration": _TEXT,
        "step_ns": _LIST,
        "parts": _LIST,
        "ops": _LIST,
    },
}

# Of a kind that has no row above.
_ANY_FIELDS: Mapping[str, tuple[type, ...]] = {"status": _TEXT}

_ERROR_FIELDS: Mapping[str, tuple[type, ...]] = {
    "name": _TEXT,
    "num_compared": _NUMBER,
    "max_abs": _NUMBER,
    "budget_ratio": _NUMBER,
    "worst_index": _LIST,
    "worst_kernel_value": _NUMBER,
    "worst_golden_value": _NUMBER,
}

_OP_COST_FIELDS: Mapping[str, tuple[type, ...]] = {
    "op": _TEXT,
    "calls": _NUMBER,
    "num_bytes": _NUMBER,
    "flops": _NUMBER,
    "estimate_ns": _NUMBER,
    "measured_ns": _LIST,
}

_STATUSES: Mapping[str, tuple[str, ...]] = {
    "parity": tuple(status.value for status in OpStatus),
    "tokens": tuple(status.value for status in RunStatus),
    "sweep": POINT_STATUSES,
    "gate": tuple(status.value for status in GateStatus),
}
_POSITIONS = {status.value for status in PositionStatus}


def check_payload(record: RunRecord, path: Path, number: int) -> None:
    """Refuse a payload that lacks what its kind needs.

    Raises:
        InputError: a field is missing, of another type, or a status nobody knows.
    """
    payload, where = record.payload, f"line {number}, payload"
    _check_fields(payload, _FIELDS.get(record.kind, _ANY_FIELDS), path, where)
    known = _STATUSES.get(record.kind, ())
    if known and payload["status"] not in known:
        raise InputError(path, f"{where}.status", payload["status"], f"one of {', '.join(known)}")
    if record.kind == "parity":
        for place, error in enumerate(payload["errors"]):
            _check_error(error, path, f"{where}.errors[{place}]")
        for name, found in (payload.get("error_maps") or {}).items():
            _check_map(found, path, f"{where}.error_maps.{name}")
    if record.kind == "tokens":
        for place, position in enumerate(payload["positions"]):
            if position not in _POSITIONS:
                remedy = f"one of {', '.join(sorted(_POSITIONS))}"
                raise InputError(path, f"{where}.positions[{place}]", position, remedy)
    if record.kind == "sweep":
        for place, request in enumerate(payload["requests"]):
            _check_request(request, path, f"{where}.requests[{place}]")
    if record.kind == "step":
        _check_step(payload, path, where)
    _check_evidence(record.kind, payload, path, where)


def _check_step(payload: Mapping[str, Any], path: Path, where: str) -> None:
    """Parts that do not fit their steps would give shares that add up to nothing."""
    count = len(payload["step_ns"])
    if not count or min(payload["step_ns"]) <= 0:
        raise InputError(path, f"{where}.step_ns", payload["step_ns"], "times of steps, above 0")
    for place, part in enumerate(payload["parts"]):
        spot = f"{where}.parts[{place}]"
        _check_fields(part, {"name": _TEXT, "kind": _TEXT, "self_ns": _LIST}, path, spot)
        if len(part["self_ns"]) != count:
            raise InputError(path, f"{spot}.self_ns", part["self_ns"], f"one time a step ({count})")
    for place, op in enumerate(payload["ops"]):
        _check_fields(op, _OP_COST_FIELDS, path, f"{where}.ops[{place}]")


def _check_error(error: object, path: Path, where: str) -> None:
    if not isinstance(error, dict):
        raise InputError(path, where, error, "a JSON object")
    _check_fields(error, _ERROR_FIELDS, path, where)


def _check_map(found: object, path: Path, where: str) -> None:
    """A map is drawn cell by cell: it must be a rectangle of numbers with the shape it is of."""
    if not isinstance(found, dict):
        raise InputError(path, where, found, "a JSON object")
    _check_fields(found, {"shape": _LIST, "measure": _TEXT, "cells": _LIST}, path, where)
    cells, shape = found["cells"], found["shape"]
    widths = {len(line) if isinstance(line, list) else -1 for line in cells}
    numbers = [value for line in cells if isinstance(line, list) for value in line]
    if len(shape) != 2 or len(widths) != 1 or min(widths) < 1:
        raise InputError(path, f"{where}.cells", cells, "rows of one length, of a shape of two")
    if not all(type(value) in (int, float) for value in numbers):
        raise InputError(path, f"{where}.cells", cells, "numbers")


def _check_request(request: object, path: Path, where: str) -> None:
    if not isinstance(request, dict):
        raise InputError(path, where, request, "a JSON object")
    stamps = request.get("token_ns", [])
    if not isinstance(stamps, list) or not all(type(stamp) is int for stamp in stamps):
        raise InputError(path, f"{where}.token_ns", stamps, "a list of integers")
    if stamps and type(request.get("t_send_ns")) is not int:
        raise InputError(path, f"{where}.t_send_ns", request.get("t_send_ns"), "an integer")


def _check_evidence(kind: str, payload: Mapping[str, Any], path: Path, where: str) -> None:
    """A good verdict without what it was taken from is no verdict."""
    status = payload.get("status")
    lacking = (
        (kind == "parity" and status == "PASS" and not payload["errors"])
        or (kind == "tokens" and status in ("MATCH", "NEAR_TIE") and not payload["positions"])
        or (kind == "sweep" and status == "OK" and not payload["requests"])
    )
    if lacking:
        raise InputError(path, f"{where}.status", status, "the evidence for this status is missing")
    if kind == "gate" and status in ("PASS", "IMPROVED", "REGRESSED"):
        for side in ("baseline", "candidate"):
            if payload.get(side) is None:
                raise InputError(path, f"{where}.{side}", None, f"{status} compares two values")


def _check_fields(
    body: Mapping[str, Any],
    fields: Mapping[str, tuple[type, ...]],
    path: Path,
    where: str,
) -> None:
    for name, types in fields.items():
        if name not in body:
            raise InputError(path, f"{where}.{name}", None, "the field is missing")
        value = body[name]
        if not isinstance(value, types) or isinstance(value, bool):
            names = " or ".join(kind.__name__ for kind in types)
            raise InputError(path, f"{where}.{name}", value, f"expected {names}")
