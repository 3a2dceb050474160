"""Collapse of the streams on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.hc_collapse_nki import hc_collapse
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def problem(tokens: int, m: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(tokens, m, width), normal(tokens, m, seed=1).float() * 1.1


def assert_matches(streams: torch.Tensor, pre: torch.Tensor) -> None:
    x = hc_collapse(streams, pre, numerics=NUMERICS)
    values, weights = streams.double().numpy(), pre.double().numpy()
    want = np.einsum("tj,tjd->td", weights, values)
    size = np.einsum("tj,tjd->td", np.abs(weights), np.abs(values))
    assert x.dtype == torch.bfloat16
    assert x.shape == want.shape
    error = np.abs(x.double().numpy() - want)
    assert np.all(error <= 1.01 * rounding_error_of_bf16(want) + 8 * 2.0**-24 * size)


@pytest.mark.parametrize("tokens", [1, 3, 127, 128, 129])
@pytest.mark.parametrize("width", [1, 48, 256])
def test_matches_the_formula_at_tile_borders(tokens: int, width: int) -> None:
    assert_matches(*problem(tokens, 4, width))


@pytest.mark.parametrize(("m", "width"), [(1, 64), (2, 64), (8, 64), (4, 5120)])
def test_any_number_of_streams_and_rows_longer_than_a_chunk(m: int, width: int) -> None:
    assert_matches(*problem(3, m, width))
    assert_matches(*problem(128, m, 2112))


def test_a_one_hot_picks_its_stream() -> None:
    streams = normal(5, 4, 64)
    pre = torch.zeros(5, 4)
    pre[:, 2] = 1.0
    assert torch.equal(hc_collapse(streams, pre, numerics=NUMERICS), streams[:, 2])


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    streams, pre = problem(5, 4, 64)
    views = layouts_of(streams)[layout], layouts_of(pre)[layout]
    assert torch.equal(
        hc_collapse(*views, numerics=NUMERICS), hc_collapse(streams, pre, numerics=NUMERICS)
    )
    assert torch.equal(views[0], streams)


def test_two_cores_give_the_bytes_of_one() -> None:
    with lnc_selected(2):
        assert_matches(*problem(5, 4, 64))


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    assert hc_collapse(*problem(0, 4, 64), numerics=NUMERICS).shape == (0, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    streams, pre = problem(2, 4, 64)
    with pytest.raises(UsageError, match="pre has shape"):
        hc_collapse(streams, pre[:, :3], numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        hc_collapse(streams, pre, numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
