"""MoE router on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.router_nki import router
from tests.kernels.formulas import NUMERICS, layouts_of, normal


def scores_of(x: torch.Tensor, weight: torch.Tensor, temperature: float) -> np.ndarray:
    logits = x.double().numpy() @ weight.double().numpy().T / temperature
    return np.sqrt(np.logaddexp(logits, 0.0))


def assert_matches(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    *,
    temperature: float = 1.0,
    normalise: bool = True,
) -> None:
    ids, weights = router(x, weight, bias, top_k, 1.5, temperature, normalise, numerics=NUMERICS)
    scores = scores_of(x, weight, temperature)
    biased = scores + bias.double().numpy()
    want = np.argsort(-biased, axis=1, kind="stable")[:, :top_k]
    best = -np.sort(-biased, axis=1)[:, : top_k + 1]
    # Where two biased scores are closer than fp32 can tell the order is open; none is here.
    assert (np.diff(best, axis=1) < -1e-6).all()
    assert ids.dtype == torch.int64
    assert np.array_equal(ids.numpy(), want)
    chosen = np.take_along_axis(scores, want, axis=1)
    if normalise and top_k > 1:
        chosen = chosen / chosen.sum(1, keepdims=True)
    assert weights.dtype == torch.float32
    assert np.allclose(weights.numpy(), 1.5 * chosen, rtol=2e-6, atol=0)


def problem(tokens: int, experts: int, channels: int) -> tuple[torch.Tensor, ...]:
    bias = torch.linspace(-0.01, 0.01, experts)
    return normal(tokens, channels), normal(experts, channels, seed=1, scale=channels**-0.5), bias


@pytest.mark.parametrize("tokens", [1, 5, 128, 129])
@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (6, 6), (8, 2), (16, 3), (24, 8)])
def test_matches_the_formula(tokens: int, experts: int, top_k: int) -> None:
    assert_matches(*problem(tokens, experts, 96), top_k)


def test_real_geometry_and_more_than_one_round_of_eight() -> None:
    assert_matches(*problem(3, 384, 1280), 6)
    assert_matches(*problem(3, 40, 256), 20)


def test_temperature_and_weights_as_they_are() -> None:
    assert_matches(*problem(4, 16, 64), 3, temperature=2.0, normalise=False)
    assert_matches(*problem(4, 16, 64), 1)


def test_the_bias_steers_the_choice_but_not_the_weight() -> None:
    x, weight, bias = problem(4, 16, 64)
    ids, weights = router(x, weight, bias, 2, 1.0, 1.0, False, numerics=NUMERICS)
    steered = bias.clone()
    steered[5] = 100.0
    new_ids, new_weights = router(x, weight, steered, 2, 1.0, 1.0, False, numerics=NUMERICS)
    assert (new_ids[:, 0] == 5).all()
    scores = scores_of(x, weight, 1.0)
    assert np.allclose(new_weights[:, 0].numpy(), scores[:, 5], rtol=2e-6)
    kept = ids[:, 0] != 5
    assert torch.equal(new_ids[kept, 1], ids[kept, 0])
    assert torch.equal(new_weights[kept, 1], weights[kept, 0])


def test_ties_go_to_the_smaller_id() -> None:
    x = normal(3, 64)
    weight = normal(1, 64, seed=1).expand(16, 64)
    ids, _ = router(x, weight, torch.zeros(16), 10, 1.0, 1.0, True, numerics=NUMERICS)
    assert ids.tolist() == [list(range(10))] * 3


def test_very_negative_logits_have_tiny_scores_not_nan() -> None:
    x = torch.ones(1, 32).bfloat16()
    weight = torch.full((8, 32), -4.0).bfloat16()
    _, weights = router(x, weight, torch.zeros(8), 2, 1.0, 1.0, False, numerics=NUMERICS)
    assert torch.isfinite(weights).all()
    assert (weights < 1e-19).all()


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_result_and_are_not_modified(layout: str) -> None:
    x, weight, bias = problem(4, 16, 64)
    view = layouts_of(x)[layout]
    found = router(view, layouts_of(weight)[layout], bias, 2, 1.5, 1.0, True, numerics=NUMERICS)
    want = router(x, weight, bias, 2, 1.5, 1.0, True, numerics=NUMERICS)
    assert torch.equal(found[0], want[0])
    assert torch.equal(found[1], want[1])
    assert torch.equal(view, x)


def test_two_cores_give_the_result_of_one() -> None:
    with lnc_selected(2):
        assert_matches(*problem(5, 16, 96), 3)


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    ids, weights = router(*problem(0, 16, 64), 2, 1.0, 1.0, True, numerics=NUMERICS)
    assert ids.shape == weights.shape == (0, 2)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    x, weight, bias = problem(2, 16, 64)
    with pytest.raises(UsageError, match="top_k 17"):
        router(x, weight, bias, 17, 1.0, 1.0, True, numerics=NUMERICS)
    with pytest.raises(KernelError, match="E is 513") as found:
        router(*problem(1, 513, 32), 2, 1.0, 1.0, True, numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="fp8_max 240"):
        router(x, weight, bias, 2, 1.0, 1.0, True, numerics=FAST)
