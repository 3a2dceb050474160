"""Frames as files for other programs: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.record import KINDS, to_plain
from reports.bench import bench_records
from reports.frame import rows_of
from reports.interval import Interval
from reports.ledger import Ledger

__all__ = ["export_csv", "export_parquet", "flat_frame"]


def export_csv(ledger: Ledger, out_dir: Path, kinds: Iterable[str] = KINDS) -> list[Path]:
    """One file a kind that has records, beside sweep.csv also bench.csv; returns their paths.

    Raises:
        UsageError: the directory cannot be written.
    """
    written = [_write_csv(frame, out_dir / f"{kind}.csv") for kind, frame in _frames(ledger, kinds)]
    if "sweep" in kinds and ledger.of_kind("sweep"):
        bench = pd.DataFrame(bench_records(ledger), dtype=object)
        written.append(_write_csv(bench, out_dir / "bench.csv"))
    return written


def export_parquet(ledger: Ledger, out_dir: Path, kinds: Iterable[str] = KINDS) -> list[Path]:
    """One file a kind that has records; returns their paths.

    Raises:
        MissingEvidenceError: pyarrow is not installed.
        UsageError: the directory cannot be written.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingEvidenceError(
            "Parquet needs pyarrow, which is not installed: pip install pyarrow, or choose csv"
        )
    return [
        _write_parquet(frame, out_dir / f"{kind}.parquet") for kind, frame in _frames(ledger, kinds)
    ]


def _frames(ledger: Ledger, kinds: Iterable[str]) -> Iterable[tuple[str, pd.DataFrame]]:
    return [(kind, flat_frame(ledger, kind)) for kind in kinds if ledger.of_kind(kind)]


def flat_frame(ledger: Ledger, kind: str) -> pd.DataFrame:
    """The records of a kind with plain columns: an interval as four, other structures as JSON."""
    rows = [_flat(row) for row in rows_of(ledger, kind)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for column in columns:
        # "PASS" and 41.2 share a column of gate verdicts; a Parquet column has one type.
        if len({isinstance(row[column], str) for row in rows if column in row}) > 1:
            rows = [{**row, column: str(row[column])} if column in row else row for row in rows]
    return pd.DataFrame(rows, columns=columns, dtype=object).convert_dtypes()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Interval):
            stem, _, unit = name.rpartition("_")
            for part in ("median", "low", "high"):
                flat[f"{stem}_{part}_{unit}"] = getattr(value, part)
            flat[f"{stem}_count"] = value.count
        elif isinstance(value, (tuple, list, dict)):
            flat[name] = json.dumps(to_plain(value), allow_nan=False, sort_keys=True)
        elif value is not None:
            flat[name] = value
    return flat


def _write_csv(frame: pd.DataFrame, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(path, index=False, lineterminator="\n")
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _write_parquet(frame: pd.DataFrame, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path, index=False)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be written ({error.strerror}); choose a writable directory with --out"
    )
