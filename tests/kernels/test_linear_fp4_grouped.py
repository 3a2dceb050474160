"""Grouped fp4 linear on the bundled interpreter against exact sums in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from harness.core.weights import QuantisedWeight
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.linear_fp4_grouped_nki import linear_fp4_grouped
from tests.kernels.formulas import (
    NUMERICS,
    fp4_values,
    fp4_weight,
    layouts_of,
    normal,
    on_fp8_grid,
    rounding_error_of_bf16,
)


def assert_matches(x: torch.Tensor, weight: QuantisedWeight, sizes: list[int]) -> None:
    y = linear_fp4_grouped(x, weight, torch.tensor(sizes), numerics=NUMERICS)
    grid, values = on_fp8_grid(x), fp4_values(weight)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    want = np.einsum("tk,tnk->tn", grid, values[owner])
    bound = x.shape[1] * 2.0**-24 * np.einsum("tk,tnk->tn", np.abs(grid), np.abs(values[owner]))
    assert y.dtype == torch.bfloat16
    assert y.shape == want.shape
    error = np.abs(y.double().numpy() - want)
    assert np.all(error <= bound + 1.01 * rounding_error_of_bf16(want))


@pytest.mark.parametrize("num_tokens", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("columns", [32, 128, 160])
def test_one_expert_is_a_dense_linear(num_tokens: int, columns: int) -> None:
    assert_matches(normal(num_tokens, columns), fp4_weight(1, 40, columns), [num_tokens])


@pytest.mark.parametrize("rows", [1, 2, 33, 64, 600])
def test_any_number_of_output_features(rows: int) -> None:
    assert_matches(normal(3, 64), fp4_weight(2, rows, 64), [1, 2])


@pytest.mark.parametrize(
    "sizes",
    [
        [0, 2, 0, 3],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [100, 0, 27, 2],
        [127, 1, 128, 5],
    ],
)
def test_experts_with_and_without_rows(sizes: list[int]) -> None:
    assert_matches(normal(sum(sizes), 64), fp4_weight(len(sizes), 32, 64), sizes)


def test_an_expert_across_the_border_of_a_token_block() -> None:
    assert_matches(normal(530, 32), fp4_weight(3, 16, 32), [500, 0, 30])


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_few_tokens_of_a_long_row_are_folded_over_partitions(num_tokens: int) -> None:
    assert_matches(normal(num_tokens, 768), fp4_weight(1, 48, 768), [num_tokens])


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(2304, 5120), (5120, 2304)])
def test_real_geometry(rows: int, columns: int) -> None:
    assert_matches(normal(3, columns), fp4_weight(2, rows, columns), [2, 1])


def test_all_sixteen_codes_in_both_places_of_a_byte() -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    scale = torch.full((1, 16, 1), 127, dtype=torch.uint8)
    weight = QuantisedWeight(codes, scale, "fp4")
    one_hot = torch.eye(32).bfloat16()
    y = linear_fp4_grouped(one_hot, weight, torch.tensor([32]), numerics=NUMERICS)
    assert np.array_equal(y.double().numpy(), fp4_values(weight)[0].T)


def test_an_overflowing_expert_does_not_reach_other_rows() -> None:
    weight = fp4_weight(2, 32, 32)
    weight.scale[0] = 247
    weight.codes[0] = 0x77
    x = normal(4, 32).abs() * 1e6
    y = linear_fp4_grouped(x, weight, torch.tensor([2, 2]), numerics=NUMERICS)
    alone = linear_fp4_grouped(x[2:], weight, torch.tensor([0, 2]), numerics=NUMERICS)
    assert torch.isinf(y[:2]).all()
    assert torch.equal(y[2:], alone)


def test_a_batch_split_changes_nothing() -> None:
    x, weight = normal(9, 64), fp4_weight(3, 32, 64)
    whole = linear_fp4_grouped(x, weight, torch.tensor([4, 0, 5]), numerics=NUMERICS)
    first = linear_fp4_grouped(x[:6], weight, torch.tensor([4, 0, 2]), numerics=NUMERICS)
    second = linear_fp4_grouped(x[6:], weight, torch.tensor([0, 0, 3]), numerics=NUMERICS)
    assert torch.equal(torch.cat((first, second)), whole)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    x, weight, sizes = normal(5, 64), fp4_weight(2, 32, 64), torch.tensor([2, 3])
    view = layouts_of(x)[layout]
    y = linear_fp4_grouped(view, weight, sizes, numerics=NUMERICS)
    assert torch.equal(y, linear_fp4_grouped(x, weight, sizes, numerics=NUMERICS))
    assert torch.equal(view, x)


def test_two_cores_share_the_columns_and_give_the_bytes_of_one() -> None:
    x, weight, sizes = normal(5, 64), fp4_weight(2, 70, 64), torch.tensor([2, 3])
    alone = linear_fp4_grouped(x, weight, sizes, numerics=NUMERICS)
    with lnc_selected(2):
        assert torch.equal(linear_fp4_grouped(x, weight, sizes, numerics=NUMERICS), alone)


def test_no_rows_give_no_rows_without_a_launch() -> None:
    reset_counters()
    y = linear_fp4_grouped(
        normal(0, 64), fp4_weight(2, 32, 64), torch.tensor([0, 0]), numerics=NUMERICS
    )
    assert y.shape == (0, 32)
    assert counters().num_launches == 0


@pytest.mark.parametrize("sizes", [[1, 1], [3, -1], [2, 1]])
def test_group_sizes_must_add_up(sizes: list[int]) -> None:
    with pytest.raises(UsageError, match="group sizes"):
        linear_fp4_grouped(
            normal(4, 64), fp4_weight(2, 32, 64), torch.tensor(sizes), numerics=NUMERICS
        )


def test_other_numerics_are_unsupported() -> None:
    with pytest.raises(KernelError) as found:
        linear_fp4_grouped(normal(1, 64), fp4_weight(1, 32, 64), torch.tensor([1]), numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
