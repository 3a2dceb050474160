"""Compressor pooling on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.compress_pool_nki import compress_pool
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def problem(rows: int, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(rows, channels).float() * 1.01, normal(rows, channels, seed=1).float() * 3


def golden(kv: torch.Tensor, gate: torch.Tensor, ratio: int) -> np.ndarray:
    values, gates = (
        tensor.double().numpy().reshape(-1, ratio, kv.shape[1]) for tensor in (kv, gate)
    )
    share = np.exp(gates - gates.max(1, keepdims=True))
    return (values * share).sum(1) / share.sum(1)


def assert_matches(kv: torch.Tensor, gate: torch.Tensor, ratio: int) -> None:
    latent = compress_pool(kv, gate, ratio, numerics=NUMERICS)
    want = golden(kv, gate, ratio)
    assert latent.dtype == torch.bfloat16
    assert latent.shape == want.shape
    bound = 1.01 * rounding_error_of_bf16(want) + 2.0**-20 * kv.abs().max().item()
    assert np.all(np.abs(latent.double().numpy() - want) <= bound)


@pytest.mark.parametrize("groups", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_matches_the_formula_at_tile_borders(groups: int, ratio: int) -> None:
    assert_matches(*problem(groups * ratio, 64), ratio)


@pytest.mark.parametrize("channels", [1, 33, 512, 1100])
def test_any_number_of_channels(channels: int) -> None:
    assert_matches(*problem(4, channels), 2)


def test_ratio_1_is_a_rounding_whatever_the_gate() -> None:
    kv, gate = problem(5, 64)
    latent = compress_pool(kv, torch.full_like(gate, torch.nan), 1, numerics=NUMERICS)
    assert torch.equal(latent, kv.bfloat16())


def test_large_gates_do_not_overflow_and_choose_one_row() -> None:
    kv, gate = problem(2, 64)
    gate[0], gate[1] = 3000.0, -3000.0
    assert torch.equal(compress_pool(kv, gate, 2, numerics=NUMERICS)[0], kv[0].bfloat16())


def test_a_common_shift_of_the_gates_changes_nothing_beyond_rounding() -> None:
    kv, gate = problem(8, 64)
    shifted = compress_pool(kv, gate + 4.0, 2, numerics=NUMERICS)
    plain = compress_pool(kv, gate, 2, numerics=NUMERICS)
    assert torch.allclose(shifted.float(), plain.float(), rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    kv, gate = problem(6, 64)
    views = layouts_of(kv)[layout], layouts_of(gate)[layout]
    latent = compress_pool(*views, 2, numerics=NUMERICS)
    assert torch.equal(latent, compress_pool(kv, gate, 2, numerics=NUMERICS))
    assert torch.equal(views[0], kv)
    assert torch.equal(views[1], gate)


def test_two_cores_give_the_bytes_of_one() -> None:
    with lnc_selected(2):
        assert_matches(*problem(10, 64), 2)


def test_no_group_needs_no_launch() -> None:
    reset_counters()
    assert compress_pool(*problem(0, 64), 2, numerics=NUMERICS).shape == (0, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    kv, gate = problem(5, 64)
    with pytest.raises(UsageError, match="no multiple of 2"):
        compress_pool(kv, gate, 2, numerics=NUMERICS)
    with pytest.raises(KernelError, match="kv has dtype"):
        compress_pool(kv.bfloat16(), gate, 1, numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        compress_pool(kv, gate, 1, numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
