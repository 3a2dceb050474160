"""RMSNorm on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import EXACT, FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.rms_norm_nki import rms_norm
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def golden(x: torch.Tensor, weight: torch.Tensor, eps: float) -> np.ndarray:
    values = x.double().numpy()
    rstd = 1.0 / np.sqrt((values**2).mean(-1, keepdims=True) + eps)
    return values * rstd * weight.double().numpy()


def assert_matches(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-20) -> None:
    y = rms_norm(x, weight, eps, numerics=NUMERICS)
    assert y.dtype == torch.bfloat16
    assert y.shape == x.shape
    want = golden(x, weight, eps)
    error = np.abs(y.double().numpy() - want)
    # One rounding, and an fp32 error that may carry a value across a rounding border.
    assert np.all(error <= 1.01 * rounding_error_of_bf16(want))


@pytest.mark.parametrize("num_tokens", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("channels", [32, 160, 512])
def test_matches_the_formula_at_tile_borders(num_tokens: int, channels: int) -> None:
    assert_matches(normal(num_tokens, channels), normal(channels, seed=1))


@pytest.mark.parametrize("num_tokens", [1, 3, 6, 7, 25])
def test_few_tokens_of_a_wide_row_are_folded_over_partitions(num_tokens: int) -> None:
    assert_matches(normal(num_tokens, 5120), normal(5120, seed=1).float())


def test_row_scales_do_not_leak_between_tokens() -> None:
    x = normal(6, 5120)
    x[::2] *= 2.0**40
    assert_matches(x, normal(5120, seed=1))


def test_eps_decides_tiny_rows_and_zero_rows_stay_zero() -> None:
    x = normal(3, 256, scale=1e-11)
    x[1] = 0
    assert_matches(x, normal(256, seed=1))
    y = rms_norm(x, torch.ones(256), 1e-20, numerics=NUMERICS)
    assert torch.equal(y[1], torch.zeros(256, dtype=torch.bfloat16))


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    x, weight = normal(5, 96), normal(96, seed=1)
    view = layouts_of(x)[layout]
    before = view.clone()
    y = rms_norm(view, weight, 1e-6, numerics=NUMERICS)
    assert torch.equal(y, rms_norm(x, weight, 1e-6, numerics=NUMERICS))
    assert torch.equal(view, before)


def test_no_rows_give_no_rows_without_a_launch() -> None:
    reset_counters()
    y = rms_norm(normal(0, 64), normal(64), 1e-6, numerics=NUMERICS)
    assert y.shape == (0, 64)
    assert counters().num_launches == 0


def test_a_permutation_of_rows_permutes_the_result_bit_for_bit() -> None:
    x, weight = normal(130, 64), normal(64, seed=1)
    order = torch.randperm(130, generator=torch.Generator().manual_seed(3))
    y = rms_norm(x, weight, 1e-6, numerics=NUMERICS)
    assert torch.equal(rms_norm(x[order], weight, 1e-6, numerics=NUMERICS), y[order])


def test_both_cores_of_lnc2_give_the_bytes_of_one() -> None:
    x, weight = normal(130, 96), normal(96, seed=1)
    alone = rms_norm(x, weight, 1e-6, numerics=NUMERICS)
    with lnc_selected(2):
        assert torch.equal(rms_norm(x, weight, 1e-6, numerics=NUMERICS), alone)


@pytest.mark.parametrize("numerics", [EXACT, FAST])
def test_other_numerics_are_unsupported(numerics: object) -> None:
    with pytest.raises(KernelError, match="fp8_max 240") as found:
        rms_norm(normal(2, 64), normal(64), 1e-6, numerics=numerics)
    assert found.value.status == "UNSUPPORTED"


def test_wrong_operands_are_named() -> None:
    with pytest.raises(UsageError, match=r"weight has shape \(32,\)"):
        rms_norm(normal(2, 64), normal(32), 1e-6, numerics=NUMERICS)
    with pytest.raises(KernelError, match="reads torch"):
        rms_norm(normal(2, 64).float(), normal(64), 1e-6, numerics=NUMERICS)
    with pytest.raises(KernelError, match="ends at 16384"):
        rms_norm(normal(1, 16416), normal(16416), 1e-6, numerics=NUMERICS)
