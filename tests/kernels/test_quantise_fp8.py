"""fp8 quantiser on the bundled interpreter, bit for bit against frexp and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.quantise_fp8_nki import dequantise_fp8, quantise_fp8
from tests.kernels.formulas import NUMERICS, layouts_of, normal


def golden(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    blocks = x.float().numpy().reshape(-1, 32)
    amax = np.maximum(np.abs(blocks).max(-1), np.float32(1e-4))
    mantissa, exponent = np.frexp(amax * np.float32(1 / 240))
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    codes = np.ldexp(blocks.astype(np.float64), -exponent[:, None]).astype(np.float32)
    codes = codes.astype(ml_dtypes.float8_e4m3).view(np.uint8)
    scale = (exponent + 127).astype(np.uint8)
    return codes.reshape(tuple(x.shape)), scale.reshape(*x.shape[:-1], -1)


def assert_exact(x: torch.Tensor) -> None:
    codes, scale = quantise_fp8(x, numerics=NUMERICS)
    want_codes, want_scale = golden(x)
    assert np.array_equal(codes.numpy(), want_codes)
    assert np.array_equal(scale.numpy(), want_scale)
    y = dequantise_fp8(codes, scale, numerics=NUMERICS)
    values = want_codes.view(ml_dtypes.float8_e4m3).astype(np.float64)
    factor = np.repeat(2.0 ** (want_scale.astype(np.float64) - 127), 32, axis=-1)
    assert y.dtype == torch.bfloat16
    assert np.array_equal(y.double().numpy(), values * factor)


@pytest.mark.parametrize("rows", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("channels", [32, 96, 512])
def test_exact_at_tile_borders(rows: int, channels: int) -> None:
    assert_exact(normal(rows, channels))


def test_rows_longer_than_a_chunk() -> None:
    assert_exact(normal(200, 4160))


def test_every_finite_bf16_beside_another() -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = torch.where(
        every.isfinite() & (every.abs() < 2.0**120), every, torch.zeros(()).bfloat16()
    )
    x = torch.zeros(65536, 32, dtype=torch.bfloat16)
    x[:, 3], x[:, 9] = every, every.flip(0)
    assert_exact(x)


def test_a_zero_block_has_zero_codes_and_the_floor_scale() -> None:
    codes, scale = quantise_fp8(torch.zeros(2, 64).bfloat16(), numerics=NUMERICS)
    assert not codes.any()
    assert (scale == 127 - 21).all()  # pow2ceil(1e-4 / 240) = 2^-21


def test_240_is_kept_and_241_doubles_the_scale() -> None:
    x = torch.zeros(2, 32).bfloat16()
    x[0, 0], x[1, 0] = 240.0, 241.0
    codes, scale = quantise_fp8(x, numerics=NUMERICS)
    assert scale[:, 0].tolist() == [127, 128]
    assert codes[0, 0].item() == 0x77


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    x = normal(5, 64)
    view = layouts_of(x)[layout]
    codes, scale = quantise_fp8(view, numerics=NUMERICS)
    assert np.array_equal(codes.numpy(), golden(x)[0])
    assert torch.equal(view, x)
    moved = layouts_of(codes)[layout]
    assert torch.equal(
        dequantise_fp8(moved, scale, numerics=NUMERICS),
        dequantise_fp8(codes, scale, numerics=NUMERICS),
    )


def test_two_cores_and_leading_axes() -> None:
    x = normal(6, 5, 64)
    with lnc_selected(2):
        assert_exact(x)


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    codes, scale = quantise_fp8(normal(0, 64), numerics=NUMERICS)
    assert (codes.shape, scale.shape) == ((0, 64), (0, 2))
    assert dequantise_fp8(codes, scale, numerics=NUMERICS).shape == (0, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 32"):
        quantise_fp8(normal(2, 40), numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        quantise_fp8(normal(2, 64), numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    with pytest.raises(KernelError, match="kernels take 1"):
        dequantise_fp8(codes, torch.zeros(1, 1, dtype=torch.uint8), numerics=NUMERICS)
    with pytest.raises(UsageError, match="codes has dtype"):
        dequantise_fp8(codes.float(), torch.ones(1, 1, dtype=torch.uint8), numerics=NUMERICS)
