"""Commands over compiled regions: what is heard of them, and what of them no one hears."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.parse import load_model_config
from engine.graphs.region_times import VARIABLE, kind_of_layer
from harness.run.bundle import bundles_below
from tests.harness.cli.command_line import run

_COMPILED = ("--no-enforce-eager", "--compile-backend", "aten")


def test_compiled_regions_are_timed_by_kind_of_layer(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    asked = ("generate", "--checkpoint", checkpoint, "--ids", "5,6,7", "--max-tokens", 1)
    assert run(*asked, *_COMPILED) == 0
    rows = capsys.readouterr().err.splitlines()
    for kind in {kind_of_layer(role) for role in load_model_config(checkpoint).roles}:
        assert any(row[:46].rstrip() == kind for row in rows)
    parts = [row for row in rows if row.startswith("  attention ")]
    assert parts
    # Calls, then total milliseconds: a region's graph takes some.
    assert all(float(row[46:].split()[1]) > 0 for row in parts)


def test_a_capture_runs_op_by_op_whatever_the_environment_asks_of_engines(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine is its own: a watched op within a graph would be called once, on no values."""
    monkeypatch.setenv("DEEPINFER_ENFORCE_EAGER", "0")
    asked = ("capture", "--checkpoint", checkpoint, "--ids", "5,6,7", "--max-tokens", 2)
    assert run(*asked, "--op", "index_scores", "--out", tmp_path) == 0
    assert len(bundles_below(tmp_path)) == 4, "two ratios, in a prompt step and a decode step"
    assert run("capture", "--no-enforce-eager", "--op", "rope", "--out", tmp_path) == 2
