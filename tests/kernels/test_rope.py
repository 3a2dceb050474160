"""Rotary embedding on the bundled interpreter against complex multiplication in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.rope_nki import rope
from tests.kernels.formulas import NUMERICS, layouts_of, normal, rounding_error_of_bf16


def angles(tokens: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    position = torch.arange(tokens, dtype=torch.float64)[:, None] * 37
    turn = position * 160000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return turn.cos().float(), turn.sin().float()


def golden(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> np.ndarray:
    values = x.double().numpy().reshape(x.shape[0], -1, x.shape[-1]).copy()
    width = 2 * cos.shape[1]
    tail = values[:, :, values.shape[2] - width :]
    turned = (tail[:, :, 0::2] + 1j * tail[:, :, 1::2]) * (
        cos.double().numpy() + 1j * sin.double().numpy()
    )[:, None, :]
    tail[:, :, 0::2], tail[:, :, 1::2] = turned.real, turned.imag
    return values.reshape(tuple(x.shape))


def assert_matches(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    y = rope(x, cos, sin, numerics=NUMERICS)
    want = golden(x, cos, sin)
    assert y.dtype == torch.bfloat16
    assert y.shape == x.shape
    # fp32 products and one sum, then one rounding.
    bound = 1.01 * rounding_error_of_bf16(want) + 2.0**-22 * x.abs().max().item()
    assert np.all(np.abs(y.double().numpy() - want) <= bound)


@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 129])
@pytest.mark.parametrize("heads", [1, 8, 32, 64, 128])
def test_matches_the_formula_at_tile_borders(tokens: int, heads: int) -> None:
    assert_matches(normal(tokens, heads, 64), *angles(tokens, 16))


@pytest.mark.parametrize(("channels", "pairs"), [(64, 32), (512, 32), (32, 16), (6, 1)])
def test_any_share_of_the_channels_turns(channels: int, pairs: int) -> None:
    assert_matches(normal(5, channels), *angles(5, pairs))


def test_straight_channels_keep_their_bits() -> None:
    x = normal(4, 3, 64)
    y = rope(x, *angles(4, 8), numerics=NUMERICS)
    assert torch.equal(y[..., :48].view(torch.int16), x[..., :48].view(torch.int16))
    assert not torch.equal(y[..., 48:], x[..., 48:])


def test_position_zero_is_the_identity_and_the_inverse_undoes() -> None:
    x = normal(6, 2, 64)
    cos, sin = angles(6, 16)
    y = rope(x, cos, sin, numerics=NUMERICS)
    assert torch.equal(y[0], x[0])
    back = rope(y, cos, -sin, numerics=NUMERICS)
    assert torch.allclose(back.float(), x.float(), atol=2**-6, rtol=2**-6)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    x, (cos, sin) = normal(5, 8, 64), angles(5, 16)
    view = layouts_of(x)[layout]
    y = rope(view, layouts_of(cos)[layout], sin, numerics=NUMERICS)
    assert torch.equal(y, rope(x, cos, sin, numerics=NUMERICS))
    assert torch.equal(view, x)


def test_two_cores_give_the_bytes_of_one() -> None:
    x, (cos, sin) = normal(33, 8, 64), angles(33, 16)
    alone = rope(x, cos, sin, numerics=NUMERICS)
    with lnc_selected(2):
        assert torch.equal(rope(x, cos, sin, numerics=NUMERICS), alone)


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    assert rope(normal(0, 8, 64), *angles(0, 16), numerics=NUMERICS).shape == (0, 8, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    x, (cos, sin) = normal(2, 64), angles(2, 16)
    with pytest.raises(UsageError, match="cos has shape"):
        rope(x, cos[:1], sin[:1], numerics=NUMERICS)
    with pytest.raises(UsageError, match="R is 128"):
        rope(x, *angles(2, 64), numerics=NUMERICS)
    with pytest.raises(KernelError, match="H is 129") as found:
        rope(normal(2, 129, 64), cos, sin, numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="fp8_max 240"):
        rope(x, cos, sin, numerics=FAST)
