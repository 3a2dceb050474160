"""Engram gate on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.engram_gate_nki import engram_gate
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def problem(tokens: int, m: int, width: int) -> tuple[torch.Tensor, ...]:
    return (
        normal(tokens, m, width),
        normal(tokens, m, width, seed=1),
        normal(tokens, width, seed=2),
        normal(m, width, seed=3),
        normal(m, width, seed=4),
    )


def golden(arguments: tuple[torch.Tensor, ...], eps: float) -> np.ndarray:
    x, key, value, q, k = (tensor.double().numpy() for tensor in arguments)
    width = x.shape[-1]
    dot = (x * q * k * key).sum(-1) * width**-0.5
    dot = dot / np.sqrt((x**2).mean(-1) + eps) / np.sqrt((key**2).mean(-1) + eps)
    gate = 1 / (1 + np.exp(-np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot)))
    return x + gate[..., None] * value[:, None]


def assert_matches(arguments: tuple[torch.Tensor, ...], eps: float = 1e-20) -> None:
    out = engram_gate(*arguments, eps, numerics=NUMERICS)
    want = golden(arguments, eps)
    assert out.dtype == torch.bfloat16
    assert out.shape == want.shape
    # The square root makes an fp32 error of a small dot up to 1e-4 of the gate.
    bound = 1.01 * rounding_error_of_bf16(want) + 2e-4 * arguments[2].abs().max().item()
    assert np.all(np.abs(out.double().numpy() - want) <= bound)


@pytest.mark.parametrize("tokens", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("width", [32, 48, 256])
def test_matches_the_formula_at_tile_borders(tokens: int, width: int) -> None:
    assert_matches(problem(tokens, 4, width))


@pytest.mark.parametrize(("m", "width"), [(1, 64), (2, 64), (8, 64), (4, 5120)])
def test_any_number_of_streams_and_long_rows(m: int, width: int) -> None:
    assert_matches(problem(3, m, width))


def test_the_sign_of_the_dot_decides_on_which_side_of_a_half_the_gate_is() -> None:
    x, _, value, _, _ = problem(2, 1, 64)
    ones = torch.ones(1, 64).bfloat16()
    value.fill_(1.0)
    towards = engram_gate(x, x.clone(), value, ones, ones, 1e-20, numerics=NUMERICS) - x
    against = engram_gate(x, -x, value, ones, ones, 1e-20, numerics=NUMERICS) - x
    assert towards.float().mean() > 0.8
    assert against.float().mean() < 0.2


def test_a_dot_of_zero_of_either_sign_keeps_its_sign() -> None:
    x, key, value, q, k = problem(2, 2, 32)
    key.zero_()
    out = engram_gate(x, key, value, q, k, 1e-20, numerics=NUMERICS)
    half = 1 / (1 + np.exp(-(1e-6**0.5)))
    assert torch.allclose(
        (out.float() - x.float()), half * value.float()[:, None], atol=2**-7, rtol=2**-7
    )


def test_rows_where_eps_decides() -> None:
    x, key, value, q, k = problem(3, 4, 64)
    assert_matches(((x.float() * 1e-12).bfloat16(), key, value, q, k))
    assert_matches((torch.zeros_like(x), key, value, q, k))


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    arguments = problem(5, 4, 64)
    views = tuple(layouts_of(tensor)[layout] for tensor in arguments)
    out = engram_gate(*views, 1e-20, numerics=NUMERICS)
    assert torch.equal(out, engram_gate(*arguments, 1e-20, numerics=NUMERICS))
    assert all(torch.equal(a, b) for a, b in zip(views, arguments, strict=True))


def test_two_cores_give_the_result_of_one() -> None:
    with lnc_selected(2):
        assert_matches(problem(5, 4, 64))


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    assert engram_gate(*problem(0, 4, 64), 1e-20, numerics=NUMERICS).shape == (0, 4, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    x, key, value, q, k = problem(2, 4, 64)
    with pytest.raises(UsageError, match="q_weight has shape"):
        engram_gate(x, key, value, q[:2], k, 1e-20, numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        engram_gate(x, key, value, q, k, 1e-20, numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
