"""The loss of the 240 grid, against exhaustive codes, exact fractions and what the ops hold."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.weights.checkpoint import Checkpoint
from engine.weights.rescale_loss import rescale_losses, tile_loss
from harness.core.errors import InputError
from harness.core.weights import QuantisedWeight
from references.weight_forms import dequantised
from tests.engine.oracle import directory

LARGE = 0x7E  # 448
ONE = 127  # scale byte of 2^0


def _value(code: int) -> Fraction:
    """Of an e4m3fn byte, by the format's definition."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    sign = -1 if code & 0x80 else 1
    if exponent == 0:
        return sign * Fraction(mantissa, 512)
    return sign * (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)


def _beside_large(code: int) -> torch.Tensor:
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    codes[0, 0], codes[0, 1] = LARGE, code
    return codes


def test_exactly_16_of_the_254_codes_are_inexact() -> None:
    scale = torch.tensor([[ONE]], dtype=torch.uint8)
    inexact = [
        code
        for code in range(256)
        if code & 0x7F != 0x7F and tile_loss("x", _beside_large(code), scale, 1).num_inexact
    ]
    assert {abs(_value(code)) * 512 for code in inexact} == {1, 3, 5, 7, 9, 11, 13, 15}
    assert len(inexact) == 16


@pytest.mark.parametrize(("code", "error"), [(1, 1.0), (3, 1 / 3), (5, 1 / 5), (15, 1 / 15)])
def test_the_error_of_an_odd_multiple_is_half_a_quantum(code: int, error: float) -> None:
    loss = tile_loss("x", _beside_large(code), torch.tensor([[ONE]], dtype=torch.uint8), 1)
    assert loss.largest_error == pytest.approx(error)
    quantum = 1 / 512
    assert loss.error_energy == pytest.approx(quantum**2)
    assert loss.energy == pytest.approx(448.0**2 + float(_value(code)) ** 2)


def test_a_tile_without_large_values_keeps_its_bits() -> None:
    codes = torch.tensor([[0x77, 1, 3, 5] * 8], dtype=torch.uint8)  # 0x77 is 240
    loss = tile_loss("x", codes, torch.tensor([[ONE]], dtype=torch.uint8), 1)
    assert (loss.num_rescaled_tiles, loss.num_inexact, loss.rms_error) == (0, 0, 0.0)


@pytest.mark.parametrize("name", ["steady_mtp", "stress"])
def test_inexact_values_are_those_the_240_grid_changes_in_the_ops(name: str) -> None:
    checkpoint = Checkpoint(directory(name))
    losses = list(rescale_losses(checkpoint))
    assert len(losses) > 50
    for loss in losses[::5]:
        shape = checkpoint.header(loss.name)[1]
        scale_name = loss.name.removesuffix(".weight") + ".scale"
        scale_shape = checkpoint.header(scale_name)[1]
        weight = QuantisedWeight(
            checkpoint.read(loss.name, "F8_E4M3", shape),
            checkpoint.read(scale_name, "F8_E8M0", scale_shape),
            "fp8_row" if scale_shape[0] == shape[0] else "fp8_block",
        )
        before = dequantised(weight, torch.float64, 448)
        after = dequantised(weight, torch.float64, 240)
        assert loss.num_inexact == int((before != after).sum()), loss.name
        assert loss.error_energy == pytest.approx(float((before - after).square().sum()))


def _saved(target: Path, scale: torch.Tensor | None) -> Checkpoint:
    tensors = {"a.weight": torch.ones(64, 64).to(torch.float8_e4m3fn)}
    if scale is not None:
        tensors["a.scale"] = scale.view(torch.float8_e8m0fnu)
    save_file(tensors, target / "model.safetensors")
    return Checkpoint(target)


def test_a_weight_without_scale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.scale"):
        list(rescale_losses(_saved(tmp_path, None)))


def test_a_scale_of_no_known_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shape of a\.scale"):
        list(rescale_losses(_saved(tmp_path, torch.full((3, 2), ONE, dtype=torch.uint8))))
