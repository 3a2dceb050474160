"""Block-scaled fp8 linear on the bundled interpreter against exact sums in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import TRN2
from harness.core.weights import QuantisedWeight
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.linear_fp8_nki import linear_fp8
from tests.kernels.formulas import (
    NUMERICS,
    fp8_240_values,
    fp8_weight,
    layouts_of,
    normal,
    on_fp8_grid,
    rounding_error_of_bf16,
)


def assert_matches(x: torch.Tensor, weight: QuantisedWeight) -> None:
    """Partial sums within fp32 summation of the exact sum; bf16 within one rounding more."""
    grid, values = on_fp8_grid(x), fp8_240_values(weight)
    want = grid @ values.T
    # Every product is exact; K fp32 additions err by K * 2^-24 of the sum of magnitudes at most.
    bound = x.shape[1] * 2.0**-24 * (np.abs(grid) @ np.abs(values).T)
    partial = linear_fp8(x, weight, "accumulate", numerics=NUMERICS)
    assert partial.dtype == torch.float32
    assert partial.shape == want.shape
    assert np.all(np.abs(partial.double().numpy() - want) <= bound)
    rounded = linear_fp8(x, weight, "activation", numerics=NUMERICS)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, partial.bfloat16())
    assert np.all(
        np.abs(rounded.double().numpy() - want) <= bound + 1.01 * rounding_error_of_bf16(want)
    )


@pytest.mark.parametrize("num_tokens", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("columns", [32, 96, 128, 160, 256])
def test_matches_the_exact_sum_at_tile_borders(num_tokens: int, columns: int) -> None:
    assert_matches(normal(num_tokens, columns), fp8_weight(64, columns))


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 70, 544])
def test_any_number_of_output_features(rows: int) -> None:
    assert_matches(normal(3, 128), fp8_weight(rows, 128))


@pytest.mark.parametrize("num_tokens", [1, 3, 7, 16])
def test_few_tokens_of_a_long_row_are_folded_over_partitions(num_tokens: int) -> None:
    assert_matches(normal(num_tokens, 1280), fp8_weight(96, 1280))


def test_more_tokens_than_stay_in_sbuf() -> None:
    assert_matches(normal(520, 64), fp8_weight(32, 64))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(1280, 5120), (512, 8192), (2304, 5120)])
def test_real_geometry(rows: int, columns: int) -> None:
    assert_matches(normal(2, columns), fp8_weight(rows, columns))


def test_activations_are_quantised_block_by_block() -> None:
    x = normal(2, 128)
    x[0, 32:64] *= 2.0**20
    x[0, 64:96] = 0
    x[1, :32] *= 2.0**-30  # below the smallest amax, 1e-4
    assert_matches(x, fp8_weight(32, 128))


@pytest.mark.parametrize("step", range(0, 65536, 8192))
def test_every_finite_bf16_amax_gets_the_scale_of_the_formula(step: int) -> None:
    bits = torch.arange(step, step + 8192, dtype=torch.int32).to(torch.int16)
    every = bits.view(torch.bfloat16)
    every = torch.where(
        every.isfinite() & (every.abs() < 2.0**100), every, torch.ones(()).bfloat16()
    )
    x = torch.zeros(8192, 32, dtype=torch.bfloat16)
    x[:, 5] = every
    x[:, 6] = (every.float() * 0.7).bfloat16()
    # Two rows pick channels 5 and 6 alone, so that y is the quantised activation itself.
    codes = torch.zeros(2, 32, dtype=torch.uint8)
    codes[0, 5] = codes[1, 6] = 0x38  # 1.0
    unit = QuantisedWeight(codes, torch.tensor([[127]], dtype=torch.uint8), "fp8_block")
    y = linear_fp8(x, unit, "accumulate", numerics=NUMERICS)
    assert np.array_equal(y.double().numpy(), on_fp8_grid(x)[:, 5:7])


def test_linear_in_powers_of_two() -> None:
    x, weight = normal(3, 64), fp8_weight(40, 64)
    y = linear_fp8(x, weight, "accumulate", numerics=NUMERICS)
    assert torch.equal(linear_fp8(x * 4, weight, "accumulate", numerics=NUMERICS), y * 4)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    x, weight = normal(5, 96), fp8_weight(32, 96)
    view = layouts_of(x)[layout]
    codes, scale = weight.codes.clone(), weight.scale.clone()
    y = linear_fp8(view, weight, "activation", numerics=NUMERICS)
    assert torch.equal(y, linear_fp8(x, weight, "activation", numerics=NUMERICS))
    assert torch.equal(view, x)
    assert torch.equal(weight.codes, codes)
    assert torch.equal(weight.scale, scale)


@pytest.mark.parametrize("rows", [32, 96, 1056])
def test_two_cores_share_the_columns_and_give_the_bytes_of_one(rows: int) -> None:
    x, weight = normal(5, 128), fp8_weight(rows, 128)
    alone = linear_fp8(x, weight, "activation", numerics=NUMERICS)
    with lnc_selected(2):
        assert torch.equal(linear_fp8(x, weight, "activation", numerics=NUMERICS), alone)


def test_shards_of_the_columns_reassemble_to_the_whole() -> None:
    x, weight = normal(3, 128), fp8_weight(128, 128)
    whole = linear_fp8(x, weight, "activation", numerics=NUMERICS)
    parts = [
        linear_fp8(
            x,
            QuantisedWeight(
                weight.codes[i : i + 32], weight.scale[i // 32 : i // 32 + 1], "fp8_block"
            ),
            "activation",
            numerics=NUMERICS,
        )
        for i in range(0, 128, 32)
    ]
    assert torch.equal(torch.cat(parts, dim=1), whole)


def test_no_rows_give_no_rows_without_a_launch() -> None:
    reset_counters()
    y = linear_fp8(normal(0, 64), fp8_weight(32, 64), "activation", numerics=NUMERICS)
    assert y.shape == (0, 32)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    x, weight = normal(2, 64), fp8_weight(32, 64)
    with pytest.raises(KernelError) as found:
        linear_fp8(x, weight, "activation", numerics=TRN2)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(UsageError, match="K=64 but the activations have 96"):
        linear_fp8(normal(2, 96), weight, "activation", numerics=NUMERICS)
    with pytest.raises(UsageError, match="choose 'activation' or 'accumulate'"):
        linear_fp8(x, weight, "rounded", numerics=NUMERICS)
    with pytest.raises(UsageError, match="layout 'fp4'"):
        linear_fp8(
            x, QuantisedWeight(weight.codes, weight.scale, "fp4"), "activation", numerics=NUMERICS
        )
