"""Frames for other programs."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import pytest

from harness.core.errors import ExitCode, MissingEvidenceError, UsageError
from reports.export import export_csv, export_parquet
from reports.frame import rows_of
from reports.ledger import Ledger


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_kind_with_records_has_a_file_with_every_record(
    sample: Ledger, tmp_path: Path
) -> None:
    paths = {path.stem: path for path in export_csv(sample, tmp_path)}
    for kind in ("parity", "tokens", "sweep", "metric", "gate", "stage"):
        assert [row["key"] for row in read_csv(paths[kind])] == [
            entry.key for entry in sample.of_kind(kind)
        ]


def test_derived_numbers_and_raw_samples_are_both_there(sample: Ledger, tmp_path: Path) -> None:
    export_csv(sample, tmp_path, ["sweep"])
    row, expected = read_csv(tmp_path / "sweep.csv")[0], rows_of(sample, "sweep")[0]
    assert float(row["ttft_median_ms"]) == expected["ttft_ms"].median
    assert int(row["ttft_count"]) == 8
    assert json.loads(row["ttft_samples_ms"]) == list(expected["ttft_samples_ms"])


def test_what_was_not_measured_is_an_empty_field(sample: Ledger, tmp_path: Path) -> None:
    export_csv(sample, tmp_path, ["sweep"])
    failed = next(row for row in read_csv(tmp_path / "sweep.csv") if row["status"] == "FAILED")
    assert (failed["ttft_median_ms"], failed["tpot_low_ms"]) == ("", "")


def test_an_unwritable_place_is_named(sample: Ledger, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="choose a writable directory"):
        export_csv(sample, tmp_path / "file")


@pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed here"
)
def test_parquet_without_pyarrow_is_an_error_that_names_it(sample: Ledger, tmp_path: Path) -> None:
    with pytest.raises(MissingEvidenceError, match="pip install pyarrow") as caught:
        export_parquet(sample, tmp_path)
    assert caught.value.exit_code is ExitCode.CANNOT_JUDGE


def test_parquet_holds_the_same_rows(sample: Ledger, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    for path in export_parquet(sample, tmp_path):
        table = parquet.read_table(path)
        assert table["key"].to_pylist() == [entry.key for entry in sample.of_kind(path.stem)]
