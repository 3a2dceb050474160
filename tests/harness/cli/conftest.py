"""One tiny checkpoint and small suites for every test of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.cli.command_line import run
from tiny_checkpoints.generator import generate

Command = Callable[..., int]

TOKEN_SUITE = """
checkpoint = "tiny-A"

[[prompts]]
name = "short"
length = 5
seed = 2
max_tokens = 3

[settings.one]
numerics = "exact"
num_threads = 1

[settings.chunked]
numerics = "exact"
num_threads = 1
max_num_batched_tokens = 2

[[pairs]]
name = "chunks"
candidate = "chunked"
oracle = "one"
judge = "equal"
logit_bound = 1e-9
"""
SWEEP = """
input_lens = [4, 8]
output_len = 3
num_repeats = 2
[engine]
num_threads = 1
"""
GATE = """
deterministic = ["tokens.*", "sweep.*.status"]
timing_counts = false
[[primary]]
name = "sweep.fast.cp=1.in=4.out=3.ttft_ms"
floor = 1.0
"""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("tiny-A", tmp_path_factory.mktemp("cli") / "tiny-A")


@pytest.fixture
def token_suite(tmp_path: Path) -> Path:
    return _written(tmp_path / "small_tokens.toml", TOKEN_SUITE)


@pytest.fixture
def sweep_spec(tmp_path: Path) -> Path:
    return _written(tmp_path / "small_sweep.toml", SWEEP)


@pytest.fixture
def gate_spec(tmp_path: Path) -> Path:
    return _written(tmp_path / "small_gate.toml", GATE)


@pytest.fixture
def command() -> Command:
    """Run `neuron-harness ...` in this process and return its exit code."""
    return run


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
