"""A server whose tokens all have text, and the programs of the clients that drive it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.serve.app import ServeOptions
from tests.clients.agreement import capture_log
from tests.engine.serve.running import RunningServer, checkpoint_with_tokenizer, running
from tests.fakes.formula_engine import VOCAB_SIZE, formula_engine

CLIENTS = Path(os.environ.get("CLIENTS_DIR", Path(__file__).parents[2] / ".clients"))
# A prompt takes half a second and a token 50 ms, as on the port's machine or shorter; what a
# client spends on sending a request then is a small part, as it is there.
STEP_S = 0.05
PROMPT_S = 0.45

Client = Callable[..., str]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_with_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer_only(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a client loads: it knows nothing of the model's configuration."""
    place = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(model / "tokenizer.json", place)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return place


@pytest.fixture
def server(model: Path, caplog: pytest.LogCaptureFixture) -> Iterator[RunningServer]:
    capture_log(caplog)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    words = [
        token
        for token in range(3, VOCAB_SIZE)
        if tokenizer.decode([token]).strip().isascii() and tokenizer.decode([token]).strip()
    ]
    engine = formula_engine(model, step_s=STEP_S, prompt_s=PROMPT_S, only_ids=words)
    with running(engine, ServeOptions(model_names=("formula",))) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Runs a client's program in a directory of its own and gives what it printed."""

    def run(name: str, program: str, *arguments: Any) -> str:
        path = CLIENTS / name / "bin" / program
        if not path.is_file():
            pytest.skip(f"{path} is not there: make clients")
        done = subprocess.run(
            [str(path), *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, "NO_COLOR": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return run
