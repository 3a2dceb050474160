"""The sample run as other tests read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.ledger import Ledger, read_run
from tests.reports.sample_run import DATA, green_records, write_run, write_sample


@pytest.fixture
def sample_dir(tmp_path: Path) -> Path:
    return write_sample(tmp_path / "sample")


@pytest.fixture(scope="session")
def sample() -> Ledger:
    """Of the stored files, which an earlier writer made."""
    return read_run(DATA)


@pytest.fixture
def green(tmp_path: Path) -> Ledger:
    return read_run(write_run(tmp_path / "green", green_records()))
