"""Casts against ml_dtypes, over every bf16 value and every byte."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from harness.core.numerics import EXACT, FAST, QUANTISED
from references.number_formats import (
    decode_e2m1,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    encode_ue8m0,
    power_of_two_ceiling,
    rounded_to_e4m3,
)
from references.precision import rounded

BYTES = np.arange(256, dtype=np.uint8)
BF16_BITS = np.arange(65536, dtype=np.uint16)


def bf16_values() -> npt.NDArray[np.float32]:
    """All 65,536 bf16 numbers, NaN and infinities among them."""
    return BF16_BITS.view(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize(
    ("fp8_max", "dtype"), [(448, ml_dtypes.float8_e4m3fn), (240, ml_dtypes.float8_e4m3)]
)
def test_every_bf16_value_gets_the_e4m3_byte_of_ml_dtypes(fp8_max: int, dtype: Any) -> None:
    values = bf16_values()
    ours = encode_e4m3(torch.from_numpy(values), fp8_max).numpy()
    number = ~np.isnan(values)
    expected = np.clip(values[number], -fp8_max, fp8_max).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(ours[number], expected)
    assert (ours[~number] & 0x7F == 0x7F).all(), "NaN must stay NaN"


def test_e4m3_bytes_decode_as_ml_dtypes_decodes_them() -> None:
    ours = decode_e4m3(torch.from_numpy(BYTES), torch.float64).numpy()
    expected = BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(ours, expected)
    assert int(np.isnan(ours).sum()) == 2
    assert np.nanmax(ours) == 448


def test_bytes_up_to_240_are_the_same_in_both_e4m3_formats() -> None:
    ocp = BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    ieee = BYTES.view(ml_dtypes.float8_e4m3).astype(np.float64)
    fits = np.abs(ocp) <= 240
    np.testing.assert_array_equal(ocp[fits], ieee[fits])
    assert not np.isfinite(ieee[~fits]).any()


def test_many_values_round_to_e4m3_by_arithmetic_as_few_do_by_the_cast() -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16).float()
    between = torch.linspace(-448.0, 448.0, 100_001)
    ties = (torch.arange(-464, 465) / 2.0**10).repeat(9) * 2.0 ** torch.arange(9).repeat_interleave(
        929
    )
    values = torch.cat([every[every.abs() <= 448], between, ties[ties.abs() <= 448]])
    many = rounded_to_e4m3(values, torch.float32)
    few = torch.cat([rounded_to_e4m3(part, torch.float32) for part in values.split(1000)])
    expected = values.numpy().astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert len(values) > 100_000
    assert many.numpy().tobytes() == expected.tobytes()
    assert few.numpy().tobytes() == expected.tobytes()


def test_what_is_no_number_stays_so_on_the_e4m3_grid() -> None:
    values = torch.full((1 << 14,), torch.nan)
    assert torch.isnan(rounded_to_e4m3(values, torch.float32)).all()
    assert torch.isnan(rounded_to_e4m3(values[:4], torch.float32)).all()


def test_every_bf16_value_gets_the_e2m1_nibble_of_ml_dtypes() -> None:
    values = bf16_values()
    values = values[~np.isnan(values)]
    padded = np.append(values, np.zeros(len(values) % 2, np.float32))
    packed = encode_e2m1(torch.from_numpy(padded)).numpy()
    ours = np.stack((packed & 15, packed >> 4), axis=-1).reshape(-1)
    expected = np.clip(padded, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    np.testing.assert_array_equal(ours, expected)


def test_e2m1_ties_go_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])
    decoded = decode_e2m1(encode_e2m1(ties), torch.float64)
    assert decoded.tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]


def test_packed_bytes_decode_low_nibble_first() -> None:
    ours = decode_e2m1(torch.from_numpy(BYTES), torch.float64).reshape(256, 2).numpy()
    nibbles = np.stack((BYTES & 15, BYTES >> 4), axis=-1)
    np.testing.assert_array_equal(ours, nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ue8m0_bytes_decode_as_ml_dtypes_decodes_them(dtype: torch.dtype) -> None:
    ours = decode_ue8m0(torch.from_numpy(BYTES), dtype).double().numpy()
    expected = BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    np.testing.assert_array_equal(ours, expected)
    assert ours[0] == 2.0**-127
    assert np.isnan(ours[255])


def test_ue8m0_bytes_come_back_from_their_values() -> None:
    codes = torch.arange(1, 255, dtype=torch.uint8)
    assert torch.equal(encode_ue8m0(decode_ue8m0(codes, torch.float32)), codes)


def test_the_power_of_two_ceiling_of_every_normal_positive_bf16() -> None:
    values = bf16_values()
    values = values[(values >= 2.0**-126) & (values <= 2.0**127)]
    ours = power_of_two_ceiling(torch.from_numpy(values)).numpy().astype(np.float64)
    assert (np.log2(ours) == np.round(np.log2(ours))).all()
    assert (ours >= values).all()
    assert (ours < 2 * values.astype(np.float64)).all()


def test_float64_is_rounded_to_bf16_once() -> None:
    just_above_a_tie = torch.tensor([1 + 2.0**-8 + 2.0**-40, -1 - 2.0**-8 - 2.0**-40, 1 + 2.0**-8])
    once = rounded(just_above_a_tie.double() * 1.0, QUANTISED)
    exact = torch.tensor([1 + 2.0**-8 + 2.0**-40, -1 - 2.0**-8 - 2.0**-40], dtype=torch.float64)
    assert rounded(exact, QUANTISED).tolist() == [1.0078125, -1.0078125]
    assert exact.to(torch.bfloat16).tolist() == [1.0, -1.0], "torch's own cast rounds twice"
    assert once[2].item() == 1.0, "an exact tie goes to the even mantissa"


def test_rounding_float64_to_bf16_keeps_every_bf16_number_and_nan() -> None:
    values = torch.from_numpy(bf16_values()).double()
    back = rounded(values, QUANTISED)
    assert torch.equal(back.isnan(), values.isnan())
    number = ~values.isnan()
    assert torch.equal(back[number].double(), values[number])


def test_rounding_to_bf16_is_to_the_nearest_of_two_neighbours() -> None:
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(20000, generator=generator, dtype=torch.float64)
    ours = rounded(values, QUANTISED).double()
    mantissa, exponent = np.frexp(values.numpy())
    expected = np.ldexp(np.rint(mantissa * 256), exponent - 8)  # rint is half to even
    np.testing.assert_array_equal(ours.numpy(), expected)


def test_exact_numerics_do_not_round_and_fast_ones_cast() -> None:
    values = torch.tensor([1 + 2.0**-30], dtype=torch.float64)
    assert rounded(values, EXACT) is values
    assert rounded(values.float(), FAST).dtype == torch.bfloat16
