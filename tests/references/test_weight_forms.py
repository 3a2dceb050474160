"""Dequantised weights and the rescaling onto the 240 grid."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from harness.core.errors import UsageError
from harness.core.weights import QuantisedWeight
from references.number_formats import decode_e4m3, decode_ue8m0
from references.weight_forms import dequantised, rescaled_to_240
from tests.references.draws import fp4_weight, fp8_weight, table_weight


def test_the_published_bytes_of_a_real_tensor() -> None:
    codes = torch.tensor([[0xD8, 0x71, 0xF2, 0x79, 0x70, 0x69, 0xF0, 0xE5]], dtype=torch.uint8)
    weight = QuantisedWeight(codes, torch.tensor([[0x73]], dtype=torch.uint8), "fp8_block")
    assert dequantised(weight, torch.float64, 448)[0].tolist() == [
        -0.00390625,
        0.03515625,
        -0.0390625,
        0.0703125,
        0.03125,
        0.017578125,
        -0.03125,
        -0.0126953125,
    ]


@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (40, 50), (1, 33)])
def test_fp8_tiles_share_a_scale_and_tails_have_one(rows: int, columns: int) -> None:
    weight = fp8_weight(1, rows, columns)
    ours = dequantised(weight, torch.float64, 448)
    values = weight.codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    for n in range(rows):
        for k in range(columns):
            exponent = int(weight.scale[n // 32, k // 32]) - 127
            assert ours[n, k] == values[n, k] * 2.0**exponent


def test_fp4_weights_hold_the_even_channel_in_the_low_nibble() -> None:
    weight = fp4_weight(2, 2, 3, 64)
    ours = dequantised(weight, torch.float64, 448)
    grid = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    for expert in range(2):
        for n in range(3):
            for k in range(64):
                byte = int(weight.codes[expert, n, k // 2])
                nibble = byte >> 4 if k % 2 else byte & 15
                exponent = int(weight.scale[expert, n, k // 32]) - 127
                assert ours[expert, n, k] == grid[nibble] * 2.0**exponent


def test_a_form_is_built_once_per_dtype_and_grid() -> None:
    weight = fp8_weight(3, 32, 32)
    first = dequantised(weight, torch.float64, 448)
    assert dequantised(weight, torch.float64, 448) is first
    assert dequantised(weight, torch.float32, 448) is not first
    assert not torch.equal(dequantised(weight, torch.float64, 240), first)


def test_halving_loses_exactly_sixteen_of_the_finite_codes() -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    scale = torch.full((8, 1), 127, dtype=torch.uint8)
    codes[:, 0] = 0x7E  # 448 in every row, so that every row is rescaled
    all_codes = torch.arange(256, dtype=torch.uint8)
    lost = []
    for code in all_codes[(all_codes & 0x7F) != 0x7F].tolist():
        row = codes[:1].clone()
        row[0, 1] = code
        halved, doubled = rescaled_to_240(row, scale[:1], "fp8_row")
        before = decode_e4m3(row[0, 1], torch.float64).item()
        after = decode_e4m3(halved[0, 1], torch.float64).item() * 2.0 ** (int(doubled.item()) - 127)
        if before != after:
            lost.append(before)
    assert sorted(lost) == sorted(
        sign * odd * 2.0**-9 for odd in (1, 3, 5, 7, 9, 11, 13, 15) for sign in (1, -1)
    )


@pytest.mark.parametrize("layout", ["fp8_block", "fp8_row"])
def test_only_tiles_beyond_240_are_rescaled_and_none_exceeds_it_after(layout: str) -> None:
    weight = fp8_weight(4, 64, 64) if layout == "fp8_block" else table_weight(4, 64, 64)
    weight.codes[:32, :32] &= 0x8F  # small values only
    codes, scale = rescaled_to_240(weight.codes, weight.scale, layout)
    assert torch.equal(codes[:32, :32], weight.codes[:32, :32])
    assert scale.flatten()[0] == weight.scale.flatten()[0]
    assert scale.flatten()[-1] == weight.scale.flatten()[-1] + 1
    assert float(decode_e4m3(codes, torch.float32).abs().max()) <= 240
    step = decode_ue8m0(scale, torch.float64).max() * 2.0**-10  # half of the smallest subnormal
    before = dequantised(weight, torch.float64, 448)
    after = dequantised(QuantisedWeight(codes, scale, weight.layout), torch.float64, 448)
    assert float((before - after).abs().max()) <= float(step)
    assert torch.equal(after, dequantised(weight, torch.float64, 240))


def test_fp4_weights_are_the_same_on_both_grids() -> None:
    weight = fp4_weight(5, 2, 4, 32)
    ours = dequantised(weight, torch.float64, 240)
    assert torch.equal(ours, dequantised(weight, torch.float64, 448))


def test_a_scale_that_cannot_double_and_a_wrong_scale_shape_are_refused() -> None:
    codes = torch.full((32, 32), 0x7E, dtype=torch.uint8)
    with pytest.raises(UsageError, match="cannot be doubled"):
        rescaled_to_240(codes, torch.full((1, 1), 254, dtype=torch.uint8), "fp8_block")
    weight = QuantisedWeight(codes, torch.zeros(2, 1, dtype=torch.uint8), "fp8_block")
    with pytest.raises(UsageError, match=r"scale has shape \(2, 1\), it must be \(1, 1\)"):
        dequantised(weight, torch.float64, 448)
