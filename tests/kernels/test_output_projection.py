"""Grouped output projection on the bundled interpreter against exact sums in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from harness.core.weights import QuantisedWeight
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.output_projection_nki import output_projection
from tests.kernels.formulas import NUMERICS, fp8_240_values, fp8_weight, layouts_of, normal


def assert_matches(o: torch.Tensor, weight: QuantisedWeight, groups: int) -> None:
    u = output_projection(o, weight, groups, numerics=NUMERICS)
    values = o.double().numpy().reshape(o.shape[0], groups, -1)
    matrices = fp8_240_values(weight).reshape(groups, -1, values.shape[2])
    want = np.einsum("tgk,glk->tgl", values, matrices)
    bound = values.shape[2] * 2.0**-24 * np.einsum("tgk,glk->tgl", np.abs(values), np.abs(matrices))
    assert u.dtype == torch.float32
    assert u.shape == want.shape
    assert np.all(np.abs(u.double().numpy() - want) <= bound)


@pytest.mark.parametrize("tokens", [1, 3, 31, 32, 33, 129])
def test_matches_the_exact_sum_at_tile_borders(tokens: int) -> None:
    assert_matches(normal(tokens, 8, 64), fp8_weight(4 * 64, 2 * 64), 4)


@pytest.mark.parametrize(
    ("heads", "dim", "groups", "features"),
    [(1, 512, 1, 1024), (8, 32, 2, 32), (16, 32, 8, 96), (4, 96, 2, 64), (6, 32, 2, 544)],
)
def test_heads_per_rank_and_groups(heads: int, dim: int, groups: int, features: int) -> None:
    weight = fp8_weight(groups * features, heads // groups * dim)
    assert_matches(normal(3, heads, dim), weight, groups)


def test_more_rows_than_stay_in_sbuf() -> None:
    assert_matches(normal(270, 4, 32), fp8_weight(64, 64), 2)


def test_a_group_sees_its_own_heads_only() -> None:
    o, weight = normal(2, 4, 64), fp8_weight(64, 128)
    u = output_projection(o, weight, 2, numerics=NUMERICS)
    o[:, 2:] = 0
    changed = output_projection(o, weight, 2, numerics=NUMERICS)
    assert torch.equal(changed[:, 0], u[:, 0])
    assert not changed[:, 1].any()


def test_parts_of_a_group_add_up_to_the_whole() -> None:
    o, weight = normal(3, 2, 64), fp8_weight(32, 128)
    whole = output_projection(o, weight, 1, numerics=NUMERICS)
    parts = [
        output_projection(
            o[:, i : i + 1],
            QuantisedWeight(
                weight.codes[:, i * 64 : i * 64 + 64],
                weight.scale[:, i * 2 : i * 2 + 2],
                "fp8_block",
            ),
            1,
            numerics=NUMERICS,
        )
        for i in range(2)
    ]
    assert torch.allclose(parts[0] + parts[1], whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    o, weight = normal(5, 4, 64), fp8_weight(64, 128)
    view = layouts_of(o)[layout]
    u = output_projection(view, weight, 2, numerics=NUMERICS)
    assert torch.equal(u, output_projection(o, weight, 2, numerics=NUMERICS))
    assert torch.equal(view, o)


@pytest.mark.parametrize("groups", [1, 2])
def test_two_cores_share_the_columns_and_give_the_bytes_of_one(groups: int) -> None:
    o, weight = normal(5, 4, 64), fp8_weight(96 * groups, 256 // groups)
    alone = output_projection(o, weight, groups, numerics=NUMERICS)
    with lnc_selected(2):
        assert torch.equal(output_projection(o, weight, groups, numerics=NUMERICS), alone)


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    u = output_projection(normal(0, 4, 64), fp8_weight(64, 128), 2, numerics=NUMERICS)
    assert u.shape == (0, 2, 32)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    o = normal(2, 4, 64)
    with pytest.raises(UsageError, match="3 groups, 4 heads"):
        output_projection(o, fp8_weight(96, 128), 3, numerics=NUMERICS)
    with pytest.raises(KernelError, match="L is 48") as found:
        output_projection(o, fp8_weight(96, 128), 2, numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="fp8_max 240"):
        output_projection(o, fp8_weight(64, 128), 2, numerics=FAST)
