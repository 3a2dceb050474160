"""Expansion into the streams on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.hc_expand_nki import hc_expand
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def problem(tokens: int, m: int, width: int) -> tuple[torch.Tensor, ...]:
    return (
        normal(tokens, width),
        normal(tokens, m, width, seed=1),
        normal(tokens, m, seed=2).float() * 1.1,
        normal(tokens, m, m, seed=3).float() * 0.9,
    )


def assert_matches(arguments: tuple[torch.Tensor, ...]) -> None:
    out = hc_expand(*arguments, numerics=NUMERICS)
    y, streams, post, comb = (tensor.double().numpy() for tensor in arguments)
    want = post[:, :, None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, streams)
    size = np.abs(post)[:, :, None] * np.abs(y)[:, None]
    size = size + np.einsum("tjk,tjd->tkd", np.abs(comb), np.abs(streams))
    assert out.dtype == torch.bfloat16
    assert out.shape == want.shape
    error = np.abs(out.double().numpy() - want)
    assert np.all(error <= 1.01 * rounding_error_of_bf16(want) + 8 * 2.0**-24 * size)


@pytest.mark.parametrize("tokens", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("width", [1, 48, 256])
def test_matches_the_formula_at_tile_borders(tokens: int, width: int) -> None:
    assert_matches(problem(tokens, 4, width))


@pytest.mark.parametrize(("m", "width"), [(1, 64), (2, 64), (8, 64), (4, 5120)])
def test_any_number_of_streams_and_rows_longer_than_a_chunk(m: int, width: int) -> None:
    assert_matches(problem(3, m, width))


def test_the_first_index_of_comb_is_the_source() -> None:
    y, streams, post, comb = problem(3, 4, 64)
    comb.zero_()
    comb[:, 1, 3] = 1.0
    out = hc_expand(y, streams, torch.zeros_like(post), comb, numerics=NUMERICS)
    assert torch.equal(out[:, 3], streams[:, 1])
    assert not out[:, :3].any()


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    arguments = problem(5, 4, 64)
    views = tuple(layouts_of(tensor)[layout] for tensor in arguments)
    out = hc_expand(*views, numerics=NUMERICS)
    assert torch.equal(out, hc_expand(*arguments, numerics=NUMERICS))
    assert all(torch.equal(a, b) for a, b in zip(views, arguments, strict=True))


def test_two_cores_give_the_bytes_of_one() -> None:
    with lnc_selected(2):
        assert_matches(problem(5, 4, 64))


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    assert hc_expand(*problem(0, 4, 64), numerics=NUMERICS).shape == (0, 4, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    y, streams, post, comb = problem(2, 4, 64)
    with pytest.raises(UsageError, match="comb has shape"):
        hc_expand(y, streams, post, comb[:, :3], numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        hc_expand(y, streams, post, comb, numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
