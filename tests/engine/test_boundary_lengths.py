"""Borders of the published geometry and of a tiny one, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.boundaries import boundary_lengths
from engine.config.limits import resolve_limits
from engine.config.parse import load_model_config, parse_model_config
from harness.core.engine_face import EngineSettings
from tiny_checkpoints.generator import generate

_CONFIG = Path(__file__).parents[2] / "engine" / "configs" / "deepseek_v4_1_flash.json"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("tiny-A", tmp_path_factory.mktemp("borders") / "tiny-A")


def test_a_tiny_model_has_a_prompt_on_each_side_of_every_border(tiny: Path) -> None:
    config = load_model_config(tiny)
    settings = EngineSettings(str(tiny), prefill="attention", context_buckets=(32, 96))
    found = boundary_lengths(config, resolve_limits(settings, config), 4)
    # Window, token bucket and candidates (4 blocks of 4 entries, ratio 1) all lie at 16.
    assert sorted(found) == [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 92]
    assert found[17].split() == ["window+1", "bucket+1", "prefill-bucket+1", "candidates+1"]
    assert found[1].split() == ["one-token", "ratio-2-1"]
    assert found[31].split() == ["prefill-bucket-1", "context-1"]
    assert found[92] == "longest"


def test_no_prompt_leaves_less_room_than_it_needs(tiny: Path) -> None:
    config = load_model_config(tiny)
    limits = resolve_limits(EngineSettings(str(tiny), context_buckets=(32,)), config)
    assert max(boundary_lengths(config, limits, 1)) == 31
    assert sorted(boundary_lengths(config, limits, 30)) == [1, 2]


def test_the_published_model_s_borders_are_those_of_its_configuration() -> None:
    config = parse_model_config(_CONFIG)
    settings = EngineSettings("x", context_buckets=(2048, 4096, 8448))
    found = boundary_lengths(config, resolve_limits(settings, config), 128)
    assert found[129].split() == ["window+1", "page+1", "bucket+1"]
    assert found[4095] == "context-1"
    assert max(found) == 8448 - 128
