"""Indexer scores on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from kernels.index_scores_nki import index_scores
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, layouts_of, normal


def weights_of(tokens: int, heads: int) -> torch.Tensor:
    return torch.randn(tokens, heads, generator=torch.Generator().manual_seed(7))


def assert_matches(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> None:
    scores = index_scores(q, keys, weights, numerics=NUMERICS)
    products = np.einsum("thx,nx->thn", q.double().numpy(), keys.double().numpy())
    magnitude = np.einsum("thx,nx->thn", np.abs(q.double().numpy()), np.abs(keys.double().numpy()))
    w = weights.double().numpy()[:, :, None]
    want = (w * np.maximum(products, 0)).sum(1)
    # fp32 sums of x and then of h terms.
    bound = (q.shape[1] + q.shape[2]) * 2.0**-24 * (np.abs(w) * magnitude).sum(1)
    assert scores.dtype == torch.float32
    assert scores.shape == want.shape
    assert np.all(np.abs(scores.double().numpy() - want) <= bound)


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 127, 128, 129])
@pytest.mark.parametrize("keys", [1, 33, 128])
def test_matches_the_formula_at_tile_borders(tokens: int, keys: int) -> None:
    assert_matches(normal(tokens, 32, 32), normal(keys, 32, seed=1), weights_of(tokens, 32))


@pytest.mark.parametrize("keys", [127, 129, 511, 512, 513, 700, 1025])
def test_keys_at_tile_and_bank_borders(keys: int) -> None:
    assert_matches(normal(3, 32, 64), normal(keys, 64, seed=1), weights_of(3, 32))


@pytest.mark.parametrize("heads", [1, 2, 5, 16, 31, 64, 128])
def test_any_number_of_heads(heads: int) -> None:
    assert_matches(normal(9, heads, 128), normal(40, 128, seed=1), weights_of(9, heads))


def test_negative_weights_count() -> None:
    q, keys = normal(2, 4, 32), normal(10, 32, seed=1)
    scores = index_scores(q, keys, -torch.ones(2, 4), numerics=NUMERICS)
    assert (scores <= 0).all()
    assert scores.min() < -1
    assert_matches(q, keys, -torch.ones(2, 4))


def test_equal_keys_score_exactly_alike_and_opposed_queries_exactly_zero() -> None:
    keys = normal(1, 64, seed=1).expand(600, 64)
    scores = index_scores(normal(2, 32, 64), keys, weights_of(2, 32), numerics=NUMERICS)
    assert torch.equal(scores, scores[:, :1].expand_as(scores))
    opposed = -keys[:2, None, :].expand(2, 32, 64)
    assert not index_scores(opposed, keys, weights_of(2, 32), numerics=NUMERICS).any()


@pytest.mark.parametrize("keys", [20, 64, 700])
def test_two_cores_share_the_keys(keys: int) -> None:
    q, rows, weights = normal(5, 32, 32), normal(keys, 32, seed=1), weights_of(5, 32)
    with lnc_selected(2):
        assert_matches(q, rows, weights)


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    q, keys, weights = normal(5, 32, 32), normal(40, 32, seed=1), weights_of(5, 32)
    views = [layouts_of(tensor)[layout] for tensor in (q, keys, weights)]
    scores = index_scores(*views, numerics=NUMERICS)
    assert torch.equal(scores, index_scores(q, keys, weights, numerics=NUMERICS))
    assert torch.equal(views[0], q)
    assert torch.equal(views[1], keys)


@pytest.mark.parametrize(("tokens", "keys"), [(0, 5), (5, 0)])
def test_nothing_to_score_needs_no_launch(tokens: int, keys: int) -> None:
    reset_counters()
    scores = index_scores(
        normal(tokens, 32, 32), normal(keys, 32), weights_of(tokens, 32), numerics=NUMERICS
    )
    assert scores.shape == (tokens, keys)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    q, keys, weights = normal(2, 32, 32), normal(4, 32), weights_of(2, 32)
    with pytest.raises(KernelError) as found:
        index_scores(q, keys, weights, numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="x is 160"):
        index_scores(normal(1, 2, 160), normal(4, 160), weights_of(1, 2), numerics=NUMERICS)
    with pytest.raises(UsageError, match="head_weights has shape"):
        index_scores(q, keys, weights[:1], numerics=NUMERICS)
