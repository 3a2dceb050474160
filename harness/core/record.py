"""The envelope of every record: schema version, kind, run, key, environment, payload."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from harness.core.errors import InputError
from harness.core.record_upgrade import SCHEMA_VERSION, upgraded

__all__ = ["KINDS", "SCHEMA_VERSION", "RunRecord", "strict_json", "to_plain"]

KINDS = ("plan", "parity", "tokens", "sweep", "metric", "gate", "stage", "compile", "step")


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, mappings and tuples as what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def strict_json(value: Any) -> str:
    """One line of strict JSON: no NaN, no Infinity, keys sorted.

    Raises:
        ValueError: a float that JSON does not know.
    """
    return json.dumps(to_plain(value), allow_nan=False, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One line of a run's ledger.

    Attributes:
        kind: one of KINDS; names the payload (ParityResult, TokenMatch, SweepPoint, ...).
        run_id: the run it belongs to.
        key: join key within the kind (case id, prompt + pair, point key, metric name).
        created: ISO 8601 UTC.
        environment: fingerprint of where it ran (see `harness.run.environment`).
        payload: the verdict or measurement with its raw samples.
        extra: fields of a newer writer, kept as they were.
    """

    kind: str
    run_id: str
    key: str
    created: str
    environment: Mapping[str, Any]
    payload: Mapping[str, Any]
    schema: int = SCHEMA_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """The record as one line of strict JSON."""
        body = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        extra = body.pop("extra")
        return strict_json({**extra, **body})

    @classmethod
    def from_line(cls, line: str, *, file: object = "record", number: int = 0) -> RunRecord:
        """Parse one line; one of an older schema is upgraded, one of a newer schema refused.

        Raises:
            InputError: broken JSON, NaN or Infinity, a duplicate key, a missing field, an
                unknown schema, or a payload that its schema does not allow.
        """
        where = f"line {number}"
        try:
            body = json.loads(
                line,
                object_pairs_hook=_refuse_duplicates,
                parse_constant=_refuse_constant,
                parse_float=_finite_float,
            )
        except ValueError as error:
            raise InputError(file, where, line[:80], f"not a JSON record: {error}") from error
        if not isinstance(body, dict):
            raise InputError(file, where, line[:80], "a record is a JSON object")
        schema = body.get("schema")
        if type(schema) is not int or not 1 <= schema <= SCHEMA_VERSION:
            raise InputError(
                file, f"{where}, schema", schema, f"this version reads schemas 1..{SCHEMA_VERSION}"
            )
        known = {item.name for item in dataclasses.fields(cls)} - {"extra"}
        missing = sorted(known - set(body))
        if missing:
            raise InputError(file, where, missing, "these fields are missing; restore the file")
        try:
            body = upgraded(body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                file, f"{where}, payload", repr(error), f"no payload of schema {schema}"
            ) from error
        extra = {key: value for key, value in body.items() if key not in known}
        return cls(**{key: body[key] for key in known}, extra=extra)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for key, value in pairs:
        if key in body:
            raise ValueError(f"key {key!r} occurs twice")
        body[key] = value
    return body


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is beyond a 64-bit float")
    return number
