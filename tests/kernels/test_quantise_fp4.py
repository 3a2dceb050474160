"""fp4 quantisers on the bundled interpreter, bit for bit against a search of the grid in fp64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.quantise_fp4_nki import dequantise_fp4, quantise_fp4
from tests.kernels.formulas import NUMERICS, layouts_of, normal

_GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def scales(x: torch.Tensor, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, values) by fp32 division, frexp and ml_dtypes."""
    amax = np.abs(x.float().numpy().reshape(-1, block)).max(-1)
    if block == 16:
        ratio = np.maximum(amax, np.float32(6 * 2.0**-9)) / np.float32(6)
        rounded = np.minimum(ratio, np.float32(240)).astype(ml_dtypes.float8_e4m3)
        return rounded.view(np.uint8), rounded.astype(np.float64)
    ratio = np.maximum(amax, np.float32(6 * 2.0**-126)) * np.float32(1 / 6)
    mantissa, exponent = np.frexp(ratio)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    return (exponent + 127).astype(np.uint8), np.ldexp(1.0, exponent)


def golden(x: torch.Tensor, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Nearest grid value, of two equally near the one with the even code."""
    bytes_, factor = scales(x, block)
    # fp64 holds |x| and grid * scale exactly, so that ties are ties.
    values = np.abs(x.double().numpy().reshape(-1, block, 1))
    distance = np.abs(values - _GRID * factor[:, None, None])
    codes = np.argmin(distance, axis=-1)
    higher = np.minimum(codes + 1, 7)
    near = np.take_along_axis(distance, codes[..., None], -1)[..., 0]
    tie = np.take_along_axis(distance, higher[..., None], -1)[..., 0] == near
    codes = np.where(tie & (codes % 2 == 1), higher, codes)
    sign = np.signbit(x.float().numpy().reshape(-1, block))
    nibbles = (codes + 8 * sign).reshape(*x.shape[:-1], -1, 2).astype(np.uint8)
    packed = nibbles[..., 0] | (nibbles[..., 1] << 4)
    return packed, bytes_.reshape(*x.shape[:-1], -1)


def assert_exact(x: torch.Tensor, block: int) -> None:
    codes, scale = quantise_fp4(x, block, numerics=NUMERICS)
    want_codes, want_scale = golden(x, block)
    assert np.array_equal(scale.numpy(), want_scale)
    assert np.array_equal(codes.numpy(), want_codes)
    y = dequantise_fp4(codes, scale, block, numerics=NUMERICS)
    nibbles = np.stack((want_codes & 15, want_codes >> 4), -1).reshape(tuple(x.shape))
    values = _GRID[nibbles & 7] * np.where(nibbles & 8, -1, 1)
    factor = np.repeat(scales(x, block)[1].reshape(want_scale.shape), block, axis=-1)
    assert y.dtype == torch.bfloat16
    assert np.array_equal(y.double().numpy(), values * factor)


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("rows", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("channels", [32, 96, 512])
def test_exact_at_tile_borders(block: int, rows: int, channels: int) -> None:
    assert_exact(normal(rows, channels), block)


@pytest.mark.parametrize("block", [16, 32])
def test_every_finite_bf16_beside_another(block: int) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    largest = 2.0**120 if block == 32 else 2.0**11
    every = torch.where(
        every.isfinite() & (every.abs() < largest), every, torch.zeros(()).bfloat16()
    )
    x = torch.zeros(65536, 32, dtype=torch.bfloat16)
    x[:, 3], x[:, 9] = every, (every.flip(0).float() * 0.37).bfloat16()
    assert_exact(x, block)


@pytest.mark.parametrize("block", [16, 32])
def test_ties_of_small_integers_go_to_the_even_code(block: int) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(-127, 128, (4000, 32), generator=generator).float()
    x = x * 2.0 ** torch.randint(-6, 4, (4000, 1), generator=generator)
    assert_exact(x.bfloat16(), block)


def test_scales_of_block_16_saturate_at_240() -> None:
    x = torch.full((1, 32), 3000.0).bfloat16()
    codes, scale = quantise_fp4(x, 16, numerics=NUMERICS)
    assert (scale == 0x77).all()
    assert (codes == 0x77).all()


def test_rows_longer_than_a_chunk() -> None:
    assert_exact(normal(2, 4128 * 2), 32)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    x = normal(5, 64)
    view = layouts_of(x)[layout]
    codes, scale = quantise_fp4(view, 16, numerics=NUMERICS)
    assert np.array_equal(codes.numpy(), golden(x, 16)[0])
    assert torch.equal(view, x)
    assert torch.equal(
        dequantise_fp4(layouts_of(codes)[layout], scale, 16, numerics=NUMERICS),
        dequantise_fp4(codes, scale, 16, numerics=NUMERICS),
    )


def test_two_cores_and_leading_axes() -> None:
    with lnc_selected(2):
        assert_exact(normal(6, 5, 64), 32)
        assert_exact(normal(6, 5, 64), 16)


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    codes, scale = quantise_fp4(normal(0, 64), 16, numerics=NUMERICS)
    assert (codes.shape, scale.shape) == ((0, 32), (0, 4))
    assert dequantise_fp4(codes, scale, 16, numerics=NUMERICS).shape == (0, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="block is 8"):
        quantise_fp4(normal(2, 64), 8, numerics=NUMERICS)
    with pytest.raises(UsageError, match="multiple of 16"):
        quantise_fp4(normal(2, 40), 16, numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        quantise_fp4(normal(2, 64), 16, numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="kernels take 1"):
        dequantise_fp4(
            torch.zeros(1, 16, dtype=torch.uint8),
            torch.full((1, 1), 255, dtype=torch.uint8),
            32,
            numerics=NUMERICS,
        )
