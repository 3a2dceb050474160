"""One formula server for the tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.serve.app import ServeOptions
from tests.engine.serve.running import RunningServer, checkpoint_with_tokenizer, running
from tests.fakes.formula_engine import formula_engine


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_with_tokenizer(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="package")
def server(checkpoint: Path) -> Iterator[RunningServer]:
    with running(formula_engine(checkpoint), ServeOptions(model_names=("formula",))) as server:
        yield server
