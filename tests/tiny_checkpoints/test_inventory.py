"""Tensor counts and sizes against the audited real checkpoint and model.md §6's table."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tests.tiny_checkpoints.real_config import REAL_TEXT_CONFIG
from tiny_checkpoints.geometry import Geometry
from tiny_checkpoints.inventory import Unit, inventory, is_ignored, is_optional
from tiny_checkpoints.safetensors_file import DTYPE_BYTES
from tiny_checkpoints.variants import VARIANTS
from tiny_checkpoints.writer import geometry_of


def _num_tensors(units: tuple[Unit, ...]) -> int:
    return sum(len(unit.tensors()) for unit in units)


def _num_bytes(units: tuple[Unit, ...]) -> int:
    return sum(
        math.prod(spec.shape) * DTYPE_BYTES[spec.dtype] for unit in units for spec in unit.tensors()
    )


@pytest.fixture(scope="module")
def real() -> tuple[Unit, ...]:
    return inventory(Geometry.from_config(REAL_TEXT_CONFIG, "config.json"))


def test_the_real_configuration_gives_the_audited_count_and_size(real: tuple[Unit, ...]) -> None:
    assert _num_tensors(real) == 95_819
    assert _num_bytes(real) / 2**30 == pytest.approx(474.34, abs=0.005)


def test_the_real_layers_have_the_audited_counts(real: tuple[Unit, ...]) -> None:
    counts: Counter[str] = Counter()
    for unit in real:
        for spec in unit.tensors():
            if spec.name.startswith("layers."):
                counts[spec.name.split(".")[1]] += 1
    special = {
        1: 2340,
        2: 2342,
        8: 2342,
        14: 2348,
        20: 2341,
        24: 2337,
        28: 2337,
        32: 2337,
        36: 2337,
    }
    assert [counts[str(layer)] for layer in range(40)] == [
        special.get(layer, 2334) for layer in range(40)
    ]


def test_some_real_tensors_have_their_published_dtype_and_shape(real: tuple[Unit, ...]) -> None:
    specs = {spec.name: (spec.dtype, spec.shape) for unit in real for spec in unit.tensors()}
    assert specs["layers.0.attn.wo_a.weight"] == ("F8_E4M3", (8192, 4096))
    assert specs["layers.0.attn.wo_a.scale"] == ("F8_E8M0", (256, 128))
    assert specs["layers.39.ffn.experts.383.w2.weight"] == ("I8", (5120, 1152))
    assert specs["layers.39.ffn.experts.383.w2.scale"] == ("F8_E8M0", (5120, 72))
    assert specs["layers.14.engram.embed.scale"] == ("F8_E8M0", (384016682, 8))
    assert specs["layers.1.engram.wkv.weight"] == ("F8_E4M3", (25600, 6144))
    assert specs["mtp.0.main_proj.weight"] == ("F8_E4M3", (5120, 15360))
    assert specs["mtp.2.confidence_head.proj.weight"] == ("BF16", (1, 5376))
    assert specs["layers.5.hc_ffn_fn"] == ("F32", (24, 20480))
    assert "layers.20.attn.compressor.wgate.weight" not in specs
    assert "layers.14.attn.compressor.wgate.weight" in specs


@pytest.mark.parametrize(
    ("variant", "num_tensors", "million_parameters", "mebibytes"),
    [("tiny-A", 990, 15.43, 12.94), ("tiny-B", 1542, 96.46, 64.97)],
)
def test_tiny_counts_are_those_of_the_model_document(
    variant: str, num_tensors: int, million_parameters: float, mebibytes: float
) -> None:
    units = inventory(geometry_of(VARIANTS[variant]))
    assert _num_tensors(units) == num_tensors
    assert sum(u.num_parameters for u in units) / 1e6 == pytest.approx(million_parameters, abs=5e-3)
    assert _num_bytes(units) / 2**20 == pytest.approx(mebibytes, abs=5e-3)


def test_the_draft_stages_of_tiny_a_hold_two_and_a_half_million_parameters() -> None:
    units = inventory(geometry_of(VARIANTS["tiny-A"]))
    draft = sum(unit.num_parameters for unit in units if unit.name.startswith("mtp."))
    assert draft / 1e6 == pytest.approx(2.50, abs=5e-3)


def test_vision_is_ignored_and_only_the_image_bias_is_optional() -> None:
    assert is_ignored("vision.blocks.0.attn.wqkv.weight")
    assert is_ignored("image_newline")
    assert not is_ignored("embed.weight")
    assert is_optional("layers.0.ffn.gate.bias_vl")
    assert not is_optional("layers.0.ffn.gate.bias")
