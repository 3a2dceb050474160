"""mHC coefficients on the bundled interpreter against loops in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.hc_mixes_nki import hc_mixes
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, layouts_of, normal

_EPS = 1e-6


def problem(tokens: int, m: int, width: int, spread: float = 1.0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(11)
    count = (2 + m) * m
    return (
        normal(tokens, m, width),
        torch.randn(count, m * width, generator=generator) * spread * (m * width) ** -0.5,
        torch.randn(count, generator=generator) * 0.3 * spread,
        torch.tensor([1.0, 0.9, 1.1]),
    )


def golden(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_eps: float,
    iterations: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    m = streams.shape[1]
    f = streams.double().numpy().reshape(streams.shape[0], -1)
    z = f @ fn.double().numpy().T / np.sqrt((f**2).mean(1, keepdims=True) + norm_eps)
    factors = np.repeat(scale.double().numpy(), [m, m, m * m])
    z = z * factors + base.double().numpy()
    pre = 1 / (1 + np.exp(-z[:, :m])) + _EPS
    post = 2 / (1 + np.exp(-z[:, m : 2 * m]))
    comb = np.empty((len(f), m, m))
    for t in range(len(f)):
        c = np.exp(z[t, 2 * m :].reshape(m, m))
        c = c / c.sum(1, keepdims=True) + _EPS
        c = c / (c.sum(0, keepdims=True) + _EPS)
        for _ in range(iterations - 1):
            c = c / (c.sum(1, keepdims=True) + _EPS)
            c = c / (c.sum(0, keepdims=True) + _EPS)
        comb[t] = c
    return pre, post, comb


def assert_matches(
    arguments: tuple[torch.Tensor, ...], norm_eps: float = 1e-20, iterations: int = 20
) -> None:
    found = hc_mixes(*arguments, norm_eps, _EPS, iterations, numerics=NUMERICS)
    want = golden(*arguments, norm_eps, iterations)
    for tensor, golden_values in zip(found, want, strict=True):
        assert tensor.dtype == torch.float32
        assert tensor.shape == golden_values.shape
        assert np.allclose(tensor.numpy(), golden_values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tokens", [1, 3, 32, 127, 128, 129])
def test_matches_the_formula_at_tile_borders(tokens: int) -> None:
    assert_matches(problem(tokens, 4, 64))


@pytest.mark.parametrize(("m", "width"), [(1, 64), (2, 48), (3, 40), (4, 1280), (8, 16)])
def test_any_number_of_streams_and_channels(m: int, width: int) -> None:
    assert_matches(problem(3, m, width))


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_the_number_of_iterations_counts(iterations: int) -> None:
    assert_matches(problem(3, 4, 64, spread=4.0), iterations=iterations)


def test_far_from_the_fixed_point_and_rows_where_eps_decides() -> None:
    assert_matches(problem(3, 4, 64, spread=12.0))
    streams, *rest = problem(3, 4, 64)
    streams = (streams.float() * 1e-11).bfloat16()
    streams[1] = 0
    assert_matches((streams, *rest))


def test_columns_sum_to_one() -> None:
    _, _, comb = hc_mixes(*problem(4, 4, 64), 1e-20, _EPS, 20, numerics=NUMERICS)
    assert torch.allclose(comb.sum(1), torch.ones(4, 4), atol=1e-5)
    assert torch.allclose(comb.sum(2), torch.ones(4, 4), atol=1e-3)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_result_and_are_not_modified(layout: str) -> None:
    streams, *rest = problem(5, 4, 64)
    view = layouts_of(streams)[layout]
    found = hc_mixes(view, *rest, 1e-20, _EPS, 3, numerics=NUMERICS)
    want = hc_mixes(streams, *rest, 1e-20, _EPS, 3, numerics=NUMERICS)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    assert torch.equal(view, streams)


def test_two_cores_give_the_result_of_one() -> None:
    with lnc_selected(2):
        assert_matches(problem(5, 4, 64))


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    pre, post, comb = hc_mixes(*problem(0, 4, 64), 1e-20, _EPS, 20, numerics=NUMERICS)
    assert (pre.shape, post.shape, comb.shape) == ((0, 4), (0, 4), (0, 4, 4))
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    streams, fn, base, scale = problem(2, 4, 64)
    with pytest.raises(UsageError, match="base has shape"):
        hc_mixes(streams, fn, base[:4], scale, 1e-20, _EPS, 20, numerics=NUMERICS)
    with pytest.raises(UsageError, match="iterations is 0"):
        hc_mixes(streams, fn, base, scale, 1e-20, _EPS, 0, numerics=NUMERICS)
    with pytest.raises(KernelError, match="m is 9") as found:
        hc_mixes(*problem(1, 9, 16), 1e-20, _EPS, 2, numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="fp8_max 240"):
        hc_mixes(streams, fn, base, scale, 1e-20, _EPS, 20, numerics=FAST)
