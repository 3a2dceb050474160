"""Quantisers against formulas of their own in numpy and ml_dtypes."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.core.numerics import FAST, GOLDEN, QUANTISED, TRN2, Numerics
from references.quantise_fp4 import dequantise_fp4, quantise_fp4
from references.quantise_fp8 import dequantise_fp8, quantise_fp8, rounded_to_fp8
from tests.references.draws import normal


def power_of_two_at_least(t: float) -> float:
    """By logarithm and correction, not by bits."""
    exponent = math.ceil(math.log2(t))
    while 2.0 ** (exponent - 1) >= t:
        exponent -= 1
    while 2.0**exponent < t:
        exponent += 1
    return 2.0**exponent


@pytest.mark.parametrize("numerics", [QUANTISED, TRN2], ids=lambda n: n.name)
@pytest.mark.parametrize("gain", [1e-6, 1.0, 300.0])
def test_fp8_codes_and_scales_follow_the_formula(numerics: Numerics, gain: float) -> None:
    limit = numerics.fp8_max
    x = (normal(3, 5, 96).float() * gain).bfloat16()
    x[1, 32:64] = 0
    codes, scale = quantise_fp8(x, numerics=numerics)
    assert codes.dtype == scale.dtype == torch.uint8
    values = x.float().numpy()
    for row in range(5):
        for block in range(3):
            part = values[row, 32 * block : 32 * block + 32]
            amax = max(np.float32(np.abs(part).max()), np.float32(1e-4))
            s = power_of_two_at_least(float(np.float32(amax) * np.float32(1 / limit)))
            assert scale[row, block] == round(math.log2(s)) + 127
            expected = np.clip(part / np.float32(s), -limit, limit).astype(ml_dtypes.float8_e4m3fn)
            got = codes[row, 32 * block : 32 * block + 32].numpy()
            np.testing.assert_array_equal(got, expected.view(np.uint8))


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("gain", [1e-4, 1.0, 4000.0])
def test_fp4_codes_and_scales_follow_the_formula(block: int, gain: float) -> None:
    x = (normal(4, 3, 64).float() * gain).bfloat16()
    x[0, :block] = 0
    codes, scale = quantise_fp4(x, block, numerics=QUANTISED)
    values = x.float().numpy()
    for row in range(3):
        for part in range(64 // block):
            channels = values[row, block * part : block * (part + 1)]
            amax = np.float32(np.abs(channels).max())
            if block == 32:
                amax = max(amax, np.float32(6 * 2.0**-126))
                s = power_of_two_at_least(float(amax * np.float32(1 / 6)))
                assert scale[row, part] == round(math.log2(s)) + 127
            else:
                amax = max(amax, np.float32(6 * 2.0**-9))
                ratio = np.minimum(amax / np.float32(6), np.float32(448))
                byte = np.array(ratio).astype(ml_dtypes.float8_e4m3fn)
                assert scale[row, part] == byte.view(np.uint8)
                s = float(byte.astype(np.float32))
            expected = np.clip(channels / np.float32(s), -6, 6).astype(ml_dtypes.float4_e2m1fn)
            nibbles = expected.view(np.uint8)
            packed = codes[row, block * part // 2 : block * (part + 1) // 2].numpy()
            np.testing.assert_array_equal(packed, nibbles[0::2] | nibbles[1::2] << 4)


def test_the_240_grid_takes_its_scale_from_240_and_never_exceeds_it() -> None:
    x = torch.full((1, 32), 448.0)
    x[0, 1] = 240.0
    codes, scale = quantise_fp8(x, numerics=TRN2)
    assert scale.item() == 128, "448 / 240 rounds up to 2"
    assert dequantise_fp8(codes, scale, numerics=TRN2)[0, :2].tolist() == [448.0, 240.0]
    ocp_codes, ocp_scale = quantise_fp8(x, numerics=QUANTISED)
    assert ocp_scale.item() == 127
    assert ocp_codes[0, 0] == 0x7E
    wide = normal(5, 64, 64) * 1e3
    magnitudes = quantise_fp8(wide, numerics=TRN2)[0] & 0x7F
    assert int(magnitudes.max()) <= 0x77, "0x77 is 240, what lies above is inf or NaN there"


@pytest.mark.parametrize("numerics", [QUANTISED, TRN2, FAST, GOLDEN], ids=lambda n: n.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_linear_input_is_what_the_codes_decode_to(
    numerics: Numerics, dtype: torch.dtype
) -> None:
    x = normal(6, 7, 128) * 3
    codes, scale = quantise_fp8(x, numerics=numerics)
    decoded = dequantise_fp8(codes, scale, numerics=GOLDEN)
    assert torch.equal(rounded_to_fp8(x, numerics.fp8_max, dtype).double(), decoded)


@pytest.mark.parametrize("fp8_max", [448, 240])
def test_no_bf16_amax_leaves_the_fp8_range_without_a_clamp(fp8_max: int) -> None:
    """rounded_to_fp8 relies on the scale alone; here is every finite bf16 amax."""
    bits = np.arange(0x0000, 0x7F80, dtype=np.uint16)
    amax = torch.from_numpy(bits.view(ml_dtypes.bfloat16).astype(np.float32))
    x = amax.unsqueeze(1).repeat(1, 32)
    assert bool(rounded_to_fp8(x, fp8_max, torch.float64).isfinite().all())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.integers(-8, 20))
def test_scaling_by_a_power_of_two_moves_the_fp8_scale_and_keeps_the_codes(
    seed: int, exponent: int
) -> None:
    x = normal(seed, 4, 32, dtype=torch.float32).clamp(min=0.1)
    codes, scale = quantise_fp8(x, numerics=QUANTISED)
    moved_codes, moved_scale = quantise_fp8(x * 2.0**exponent, numerics=QUANTISED)
    assert torch.equal(codes, moved_codes)
    assert torch.equal(scale.int() + exponent, moved_scale.int())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), block=st.sampled_from([16, 32]))
def test_values_on_the_fp4_grid_come_back_unchanged(seed: int, block: int) -> None:
    x = normal(seed, 3, 64)
    once = dequantise_fp4(*quantise_fp4(x, block, numerics=QUANTISED), block, numerics=QUANTISED)
    if block == 32:  # an e4m3 scale of a block whose largest code is not 6 may change
        again = quantise_fp4(once, block, numerics=QUANTISED)
        assert torch.equal(dequantise_fp4(*again, block, numerics=QUANTISED), once)
    error = (once.float() - x.float()).abs().reshape(3, -1, block)
    amax = x.float().abs().reshape(3, -1, block).amax(-1, keepdim=True)
    widest_step = 2.0 if block == 32 else 1.0  # in units of amax / 6
    assert bool((error <= amax / 6 * widest_step * 1.07).all())


def test_negative_values_mirror_positive_ones() -> None:
    x = normal(8, 2, 64)
    codes, scale = quantise_fp8(x, numerics=QUANTISED)
    mirrored, same_scale = quantise_fp8(-x, numerics=QUANTISED)
    assert torch.equal(codes ^ 0x80, mirrored)
    assert torch.equal(scale, same_scale)


def test_wrong_operands_are_refused() -> None:
    codes, scale = quantise_fp8(normal(1, 2, 64), numerics=QUANTISED)
    with pytest.raises(UsageError, match="multiple of 32"):
        quantise_fp8(normal(1, 2, 40), numerics=QUANTISED)
    with pytest.raises(UsageError, match=r"dtype torch\.int64"):
        quantise_fp8(torch.zeros(2, 32, dtype=torch.int64), numerics=QUANTISED)
    with pytest.raises(UsageError, match="uint8"):
        dequantise_fp8(codes.int(), scale, numerics=QUANTISED)
    with pytest.raises(UsageError, match="scale has shape"):
        dequantise_fp8(codes, scale[:1], numerics=QUANTISED)
    with pytest.raises(UsageError, match="block is 8"):
        quantise_fp4(normal(1, 2, 64), 8, numerics=QUANTISED)
    with pytest.raises(UsageError, match="multiple of 16"):
        quantise_fp4(normal(1, 2, 24), 16, numerics=QUANTISED)
    with pytest.raises(UsageError, match="block is 64"):
        dequantise_fp4(codes, scale, 64, numerics=QUANTISED)
