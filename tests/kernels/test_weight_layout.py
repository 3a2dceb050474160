"""Checkpoint weights re-laid for trn2, against tables built value by value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.weights import QuantisedWeight
from kernels.weight_layout import prepared_fp4, prepared_fp8
from tests.kernels.formulas import fp4_values, fp4_weight, fp8_240_values, fp8_weight


def ue8m0(bytes_: torch.Tensor) -> np.ndarray:
    return 2.0 ** (bytes_.numpy().astype(np.float64) - 127)


def block_of(codes: list[int]) -> QuantisedWeight:
    """One 32x32 block that starts with these bytes, scale 1."""
    flat = torch.zeros(1024, dtype=torch.uint8)
    flat[: len(codes)] = torch.tensor(codes, dtype=torch.uint8)
    return QuantisedWeight(
        flat.reshape(32, 32), torch.tensor([[127]], dtype=torch.uint8), "fp8_block"
    )


@pytest.mark.parametrize(("rows", "columns"), [(32, 128), (70, 160), (33, 32), (1, 96)])
def test_prepared_fp8_holds_the_values_of_the_240_grid(rows: int, columns: int) -> None:
    weight = fp8_weight(rows, columns)
    prepared = prepared_fp8(weight)
    codes = prepared.codes.numpy().view(ml_dtypes.float8_e4m3).astype(np.float64)
    scale = np.repeat(np.repeat(prepared.scale.double().numpy(), 32, axis=0), 32, axis=1)
    assert codes.shape[0] % 128 == 0
    assert codes.shape[1] % 32 == 0
    assert np.isfinite(codes).all()
    values = codes * scale
    assert np.array_equal(values[:columns, :rows].T, fp8_240_values(weight))
    assert not values[columns:].any()
    assert not values[:, rows:].any()


def test_a_block_within_240_keeps_its_bytes() -> None:
    weight = fp8_weight(64, 128, largest=0x77)  # 0x77 is 240
    prepared = prepared_fp8(weight)
    assert torch.equal(prepared.codes[:128, :64].t(), weight.codes)
    assert np.array_equal(prepared.scale.t().double().numpy()[:, :4], ue8m0(weight.scale))
    assert (prepared.num_rescaled_blocks, prepared.num_inexact) == (0, 0)


def test_one_large_value_halves_its_own_block_only() -> None:
    weight = fp8_weight(64, 64, largest=0x77)
    weight.codes[40, 3] = 0x78  # 256
    prepared = prepared_fp8(weight)
    assert prepared.num_rescaled_blocks == 1
    doubled = ue8m0(weight.scale) * np.array([[1, 1], [2, 1]])
    assert np.array_equal(prepared.scale[:2].t().double().numpy(), doubled)


def test_sixteen_codes_lose_their_last_bit_when_halved() -> None:
    finite = [code for code in range(256) if code & 0x7F != 0x7F]
    prepared = prepared_fp8(block_of(finite))
    assert prepared.num_inexact == 16
    halves = prepared.codes[:, :].t().reshape(-1)
    codes = prepared.codes.numpy().view(ml_dtypes.float8_e4m3).astype(np.float64)[:32, :32].T
    stored = np.zeros(1024)
    stored[: len(finite)] = (
        np.array(finite, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    )
    doubled = codes.reshape(-1) * 2
    lost = stored[doubled != stored]
    assert halves.numel() >= 1024
    assert sorted(np.abs(lost) * 512) == sorted([1, 3, 5, 7, 9, 11, 13, 15] * 2)


def test_bytes_that_cannot_be_carried_are_unsupported() -> None:
    weight = block_of([0x7E])
    weight.scale[0, 0] = 254
    with pytest.raises(KernelError, match="cannot be doubled") as found:
        prepared_fp8(weight)
    assert found.value.status == "UNSUPPORTED"
    packed = fp4_weight(1, 2, 32)
    packed.scale[0, 1, 0] = 250
    with pytest.raises(KernelError, match="2\\^122"):
        prepared_fp4(packed)


def test_a_scale_of_another_shape_is_named() -> None:
    weight = QuantisedWeight(
        torch.zeros(33, 32, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8), "fp8_block"
    )
    with pytest.raises(UsageError, match=r"it must be \(2, 1\)"):
        prepared_fp8(weight)


def decoded_pairs(codes: np.ndarray) -> np.ndarray:
    """fp4 values [E, K, N] of the paired layout, bit by bit."""
    first = (codes & 0b10000000) | (codes & 0b00011100)
    second = ((codes >> 5 & 1) << 7) | ((codes >> 6 & 1) << 4) | ((codes & 3) << 2)
    both = np.concatenate((first, second), axis=2).astype(np.uint8)
    return both.view(ml_dtypes.float8_e4m3).astype(np.float64)


@pytest.mark.parametrize(("rows", "columns"), [(2, 32), (33, 160), (128, 128)])
def test_prepared_fp4_holds_the_stored_values(rows: int, columns: int) -> None:
    weight = fp4_weight(3, rows, columns)
    prepared = prepared_fp4(weight)
    scale = np.repeat(prepared.scale.double().numpy(), 32, axis=1)
    values = decoded_pairs(prepared.codes.numpy()) * scale
    assert np.array_equal(values[:, :columns, :rows].transpose(0, 2, 1), fp4_values(weight))
    assert not values[:, columns:].any()


def test_the_prepared_form_is_built_once() -> None:
    weight = fp8_weight(32, 32)
    assert prepared_fp8(weight) is prepared_fp8(weight)
