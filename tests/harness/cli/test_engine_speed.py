"""Ratios of the engine's bench: medians of turns, baselines by the hash of their source."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from harness.cli.benchmarks import engine_speed
from harness.cli.benchmarks.measurement import package_hash


def _package(place: Path) -> ModuleType:
    module = ModuleType("baseline")
    module.__path__ = [str(place)]
    return module


def test_a_baseline_is_named_by_what_its_files_hold(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("a = 1\n")
    before = package_hash(_package(tmp_path))
    assert len(before) == 12
    assert package_hash(_package(tmp_path)) == before
    (tmp_path / "notes.txt").write_text("no source")
    assert package_hash(_package(tmp_path)) == before
    (tmp_path / "model.py").write_text("a = 2\n")
    assert package_hash(_package(tmp_path)) != before


def test_a_ratio_is_the_median_of_turns_and_both_sides_run_in_each() -> None:
    ours, theirs = iter([2.0, 90.0, 3.0]), iter([1.0, 10.0, 1.0])
    assert engine_speed._median_ratio(lambda: next(ours), lambda: next(theirs), 3) == 3.0
    assert list(ours) == list(theirs) == []


@pytest.mark.parametrize(("ratio", "met"), [(5.0, True), (4.99, False)])
def test_a_goal_is_met_from_its_value_on(ratio: float, met: bool) -> None:
    figure = engine_speed._at_least("decode", ratio, 5.0, "references.oracle 0123")
    assert (figure.met, figure.goal, figure.unit) == (met, ">= 5", "x")


def test_more_positions_change_the_configuration_alone(checkpoint: Path, tmp_path: Path) -> None:
    wide = engine_speed._with_positions(checkpoint, tmp_path, 65536)
    changed = json.loads((wide / "config.json").read_text())
    known = json.loads((checkpoint / "config.json").read_text())
    assert changed["text_config"].pop("max_position_embeddings") == 65536
    assert known["text_config"].pop("max_position_embeddings") < 65536
    assert changed == known
    names = {file.name for file in checkpoint.iterdir()}
    assert {file.name for file in wide.iterdir()} == names
