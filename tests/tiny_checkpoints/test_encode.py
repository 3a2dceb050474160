"""This island's encoders against ml_dtypes, exact fractions and a published sample."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tiny_checkpoints.encode import (
    bf16_bytes,
    e2m1_codes,
    e4m3_bytes,
    fp4_rows,
    fp8_rows,
    fp8_tiles,
    pow2_ceil_exponent,
    ue8m0_bytes,
)

E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _random(count: int, scale: float) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(count) * scale


def test_every_e4m3_code_encodes_to_itself() -> None:
    finite = np.isfinite(E4M3)
    assert e4m3_bytes(E4M3[finite]).tolist() == np.arange(256)[finite].tolist()


def test_e4m3_agrees_with_ml_dtypes_on_random_values_and_on_every_tie() -> None:
    grid = np.sort(E4M3[np.isfinite(E4M3)])
    values = np.concatenate(
        [_random(20000, 50.0), _random(20000, 0.01), (grid[1:] + grid[:-1]) / 2]
    )
    values = values[np.abs(values) <= 448]
    expected = values.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    exact = values == values.astype(np.float32)  # ml_dtypes rounds twice elsewhere
    assert exact.sum() > 250
    nearly = e4m3_bytes(values.astype(np.float32).astype(np.float64))
    assert nearly.tolist() == expected.tolist()


def test_e4m3_clamps_instead_of_giving_nan() -> None:
    assert e4m3_bytes(np.array([449.0, -1e9, 464.0])).tolist() == [0x7E, 0xFE, 0x7E]


def test_e2m1_takes_the_nearest_and_the_even_code_on_ties() -> None:
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert E2M1[e2m1_codes(ties)].tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert E2M1[e2m1_codes(-ties)].tolist() == [0, -1, -1, -2, -2, -4, -4]
    values = _random(5000, 3.0)
    distance = np.abs(E2M1[e2m1_codes(values)] - values)
    nearest = np.abs(E2M1[None, :] - np.clip(values, -6, 6)[:, None]).min(1)
    inside = np.abs(values) <= 6
    assert np.array_equal(distance[inside], nearest[inside])
    assert E2M1[e2m1_codes(np.array([7.0, -100.0]))].tolist() == [6, -6]


def test_bf16_agrees_with_ml_dtypes() -> None:
    values = np.concatenate([_random(5000, 1.0), [0.0, -0.0, 1e-40, 3.3e38, 1.00390625]])
    single = values.astype(np.float32)
    expected = single.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert bf16_bytes(single.astype(np.float64)).tolist() == expected.tolist()


def test_pow2_ceil_is_exact_at_and_beside_powers_of_two() -> None:
    values = np.array([1.0, np.nextafter(1.0, 2), np.nextafter(1.0, 0), 0.25, 0.3, 448.0])
    assert pow2_ceil_exponent(values).tolist() == [0, 1, 0, -2, -1, 9]


def test_the_sampled_bytes_of_the_real_checkpoint_come_back() -> None:
    """model.md §4.3: layers.0.attn.wkv.weight row 0 under scale 0x73."""
    values = np.array(
        [-0.00390625, 0.03515625, -0.0390625, 0.0703125, 0.03125, 0.017578125, -0.03125]
    )
    codes = e4m3_bytes(np.append(values, -0.0126953125) / 2.0 ** (0x73 - 127))
    assert codes.tobytes().hex() == "d871f2797069f0e5"


def test_fp8_tiles_use_the_smallest_power_of_two_that_fits() -> None:
    weight = _random(64 * 96, 0.1).reshape(64, 96)
    weight[:32, 32:64] = 0.0
    weight[40, 70] = 448.0 * 2.0**-3
    codes, scale = fp8_tiles(weight)
    assert codes.shape == (64, 96)
    assert scale.shape == (2, 3)
    for row in range(2):
        for column in range(3):
            tile = weight[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
            amax = Fraction(max(float(np.abs(tile).max()), 1e-4))
            factor = Fraction(2) ** (int(scale[row, column]) - 127)
            assert amax <= 448 * factor
            assert amax > 448 * factor / 2
    assert scale[1, 2] == 127 - 3
    full = np.repeat(np.repeat(2.0 ** (scale.astype(float) - 127), 32, 0), 32, 1)
    assert np.abs(E4M3[codes] * full - weight).max() <= 16 * full.max()


def test_fp4_rows_put_the_even_channel_into_the_low_nibble() -> None:
    weight = np.zeros((1, 64))
    weight[0, :2] = [6.0, -3.0]
    weight[0, 32:34] = [0.5, 1.0]
    packed, scale = fp4_rows(weight)
    assert packed.shape == (1, 32)
    assert packed[0, 0] == 0x7 | 0xD << 4
    assert scale[0, 0] == 127
    assert scale[0, 1] == 127 - 2  # 1.0 / 6 rounds up to 1/4
    assert packed[0, 16] == 0x4 | 0x6 << 4  # 2.0 and 4.0 quarters
    assert packed[0, 1] == 0


def test_fp8_rows_keep_the_scales_they_are_given() -> None:
    table = np.array([[1.0] * 32 + [16.0] * 32])
    codes, scale = fp8_rows(table, np.array([[-4, 0]], dtype=np.int32))
    assert scale.tolist() == [[123, 127]]
    assert E4M3[codes[0, [0, 32]]].tolist() == [16.0, 16.0]


def test_a_ragged_shape_and_a_scale_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="whole number of tiles"):
        fp8_tiles(np.zeros((33, 64)))
    with pytest.raises(ValueError, match="do not fit ue8m0"):
        ue8m0_bytes(np.array([128], dtype=np.int32))
