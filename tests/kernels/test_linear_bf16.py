"""Plain linear on the bundled interpreter against exact sums in fp64."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels import plain_weight
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.linear_bf16_nki import linear_bf16
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def assert_matches(x: torch.Tensor, weight: torch.Tensor) -> None:
    values, matrix = x.double().numpy(), weight.double().numpy()
    want = values @ matrix.T
    bound = (x.shape[1] + 1) * 2.0**-24 * (np.abs(values) @ np.abs(matrix).T)
    partial = linear_bf16(x, weight, "accumulate", numerics=NUMERICS)
    rounded = linear_bf16(x, weight, "activation", numerics=NUMERICS)
    assert (partial.dtype, rounded.dtype) == (torch.float32, torch.bfloat16)
    assert partial.shape == want.shape
    assert np.all(np.abs(partial.double().numpy() - want) <= bound)
    assert torch.equal(rounded, partial.bfloat16())
    assert np.all(
        np.abs(rounded.double().numpy() - want) <= bound + 1.01 * rounding_error_of_bf16(want)
    )


@pytest.mark.parametrize("tokens", [1, 5, 127, 128, 129])
@pytest.mark.parametrize("channels", [1, 100, 128, 129, 256])
def test_matches_the_exact_sum_at_tile_borders(tokens: int, channels: int) -> None:
    assert_matches(normal(tokens, channels), normal(33, channels, seed=1))


@pytest.mark.parametrize("features", [1, 32, 511, 512, 513, 1030])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_any_number_of_output_features(features: int, dtype: torch.dtype) -> None:
    assert_matches(normal(3, 64), normal(features, 64, seed=1).to(dtype) * 1.1)


def test_few_tokens_of_a_long_row_and_more_tokens_than_stay_in_sbuf() -> None:
    assert_matches(normal(3, 1280), normal(40, 1280, seed=1))
    assert_matches(normal(520, 64), normal(8, 64, seed=1))


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    x, weight = normal(5, 64), normal(40, 64, seed=1)
    views = layouts_of(x)[layout], layouts_of(weight)[layout]
    y = linear_bf16(*views, "activation", numerics=NUMERICS)
    assert torch.equal(y, linear_bf16(x, weight, "activation", numerics=NUMERICS))
    assert torch.equal(views[0], x)
    assert torch.equal(views[1], weight)


@pytest.mark.parametrize("features", [20, 64, 1030])
def test_two_cores_share_the_columns_and_give_the_bytes_of_one(features: int) -> None:
    x, weight = normal(5, 64), normal(features, 64, seed=1)
    alone = linear_bf16(x, weight, "accumulate", numerics=NUMERICS)
    with lnc_selected(2):
        assert torch.equal(linear_bf16(x, weight, "accumulate", numerics=NUMERICS), alone)


def test_the_transposed_copy_follows_its_weight_and_dies_with_it() -> None:
    x, weight = normal(2, 64), normal(8, 64, seed=1)
    first = linear_bf16(x, weight, "accumulate", numerics=NUMERICS)
    assert plain_weight.channel_major(weight) is plain_weight.channel_major(weight)
    weight.mul_(2)
    assert torch.equal(linear_bf16(x, weight, "accumulate", numerics=NUMERICS), first * 2)
    kept = len(plain_weight._copies)
    del weight
    gc.collect()
    assert len(plain_weight._copies) == kept - 1


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    assert linear_bf16(normal(0, 64), normal(8, 64), "activation", numerics=NUMERICS).shape == (
        0,
        8,
    )
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    x = normal(2, 64)
    with pytest.raises(UsageError, match="weight has shape"):
        linear_bf16(x, normal(8, 32), "activation", numerics=NUMERICS)
    with pytest.raises(UsageError, match="choose 'activation'"):
        linear_bf16(x, normal(8, 64), "rounded", numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        linear_bf16(x, normal(8, 64), "activation", numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
