"""Clamped SwiGLU on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import QUANTISED
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.swiglu_nki import swiglu
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def golden(gate: torch.Tensor, up: torch.Tensor, limit: float, route: object) -> np.ndarray:
    g = np.minimum(gate.double().numpy(), limit)
    u = np.clip(up.double().numpy(), -limit, limit)
    y = g / (1.0 + np.exp(-g)) * u
    return y if route is None else route.double().numpy()[:, None] * y


def assert_matches(
    gate: torch.Tensor, up: torch.Tensor, route: torch.Tensor | None, limit: float = 10.0
) -> None:
    y = swiglu(gate, up, limit, route, numerics=NUMERICS)
    want = golden(gate, up, limit, route)
    error = np.abs(y.double().numpy() - want)
    assert np.all(error <= 1.01 * rounding_error_of_bf16(want))


@pytest.mark.parametrize("num_tokens", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("width", [1, 33, 128, 2304])
def test_matches_the_formula_at_tile_borders(num_tokens: int, width: int) -> None:
    gate, up = normal(num_tokens, width, scale=8.0), normal(num_tokens, width, seed=1, scale=8.0)
    route = torch.rand(num_tokens, generator=torch.Generator().manual_seed(2))
    assert_matches(gate, up, None)
    assert_matches(gate, up, route)


def test_a_row_wider_than_a_tile_has_its_tail() -> None:
    assert_matches(normal(2, 4097), normal(2, 4097, seed=1), torch.tensor([0.5, 2.0]))


def test_the_gate_is_limited_from_above_only_and_up_on_both_sides() -> None:
    gate = torch.tensor([[-50.0, 50.0, 3.0, 3.0]]).bfloat16()
    up = torch.tensor([[3.0, 3.0, -50.0, 50.0]]).bfloat16()
    y = swiglu(gate, up, 10.0, None, numerics=NUMERICS).double()
    three = 3.0 / (1.0 + np.exp(-3.0))
    want = torch.tensor([[0.0, 10.0 / (1.0 + np.exp(-10.0)) * 3.0, -10 * three, 10 * three]])
    assert torch.allclose(y, want.double(), rtol=2**-8, atol=1e-18)


def test_extremes_of_bf16_stay_finite() -> None:
    largest = torch.finfo(torch.bfloat16).max
    gate = torch.tensor([[largest, -largest, 0.0, -0.0]]).bfloat16()
    y = swiglu(gate, gate.flip(1), 10.0, None, numerics=NUMERICS)
    assert torch.isfinite(y).all()


def test_a_zero_routing_weight_silences_its_row_only() -> None:
    gate, up = normal(3, 64), normal(3, 64, seed=1)
    y = swiglu(gate, up, 10.0, torch.tensor([1.0, 0.0, 1.0]), numerics=NUMERICS)
    plain = swiglu(gate, up, 10.0, None, numerics=NUMERICS)
    assert not y[1].any()
    assert torch.equal(y[::2], plain[::2])


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    gate, up = normal(5, 64), normal(5, 64, seed=1)
    view, before = layouts_of(gate)[layout], gate.clone()
    y = swiglu(view, up, 10.0, None, numerics=NUMERICS)
    assert torch.equal(y, swiglu(gate, up, 10.0, None, numerics=NUMERICS))
    assert torch.equal(view, before)


def test_both_cores_of_lnc2_give_the_bytes_of_one() -> None:
    gate, up, route = normal(129, 64), normal(129, 64, seed=1), torch.rand(129)
    alone = swiglu(gate, up, 10.0, route, numerics=NUMERICS)
    with lnc_selected(2):
        assert torch.equal(swiglu(gate, up, 10.0, route, numerics=NUMERICS), alone)


def test_no_rows_give_no_rows_without_a_launch() -> None:
    reset_counters()
    assert swiglu(normal(0, 64), normal(0, 64), 10.0, None, numerics=NUMERICS).shape == (0, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    x = normal(2, 64)
    with pytest.raises(KernelError) as found:
        swiglu(x, x, 10.0, None, numerics=QUANTISED)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(UsageError, match="limit is 0"):
        swiglu(x, x, 0.0, None, numerics=NUMERICS)
    with pytest.raises(UsageError, match="route_weight has shape"):
        swiglu(x, x, 10.0, torch.ones(3), numerics=NUMERICS)
