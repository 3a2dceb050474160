"""The flash_mla face against softmax over loops of keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from harness.core.errors import UsageError
from harness.core.numerics import QUANTISED
from references import flash_mla
from references.paged_caches import pages_of
from references.quantise_fp4 import dequantise_fp4, quantise_fp4
from references.quantise_fp8 import dequantise_fp8, quantise_fp8
from tests.references.draws import normal

D = 64
META = flash_mla.get_mla_metadata()


def attention(
    q: torch.Tensor, keys: list[torch.Tensor], sink: float, scale: float
) -> tuple[np.ndarray, float]:
    """Output and lse of one head, in Python floats."""
    if not keys:
        return np.zeros(D), -math.inf
    scores = [scale * float(q.double() @ key.double()) for key in keys]
    lse = math.log(math.fsum(math.exp(s) for s in scores))
    share = 1 / (1 + math.exp(sink - lse))
    out = sum(math.exp(s - lse) * key.double().numpy() for s, key in zip(scores, keys, strict=True))
    return share * out, lse


def window_cache(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = quantise_fp8(normal(seed, count, D), numerics=QUANTISED)
    return pages_of(codes, scale, 4), dequantise_fp8(codes, scale, numerics=QUANTISED)


def compressed_cache(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = quantise_fp4(normal(seed, count, D), 16, numerics=QUANTISED)
    return pages_of(codes, scale, 2), dequantise_fp4(codes, scale, 16, numerics=QUANTISED)


def test_sparse_decode_joins_window_and_compressed_cache_under_one_softmax() -> None:
    window, window_rows = window_cache(1, 10)
    extra, extra_rows = compressed_cache(2, 6)
    q = normal(3, 2, 2, 3, D)
    indices = torch.tensor([[[0, 9, -1], [4, 5, 6]], [[7, -1, 2], [-1, -1, -1]]]).int()
    extra_indices = torch.tensor([[[5, 0], [-1, 3]], [[1, 2], [-1, -1]]]).int()
    sink = torch.tensor([0.5, -1.0, 2.0])
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, window, None, None, D, META, softmax_scale=0.2, is_fp8_kvcache=True, indices=indices,
        attn_sink=sink, extra_k_cache=extra, extra_indices_in_kvcache=extra_indices,
        topk_length=torch.tensor([3, 2]), extra_topk_length=torch.tensor([2, 1]),
    )  # fmt: skip
    assert out.shape == (2, 2, 3, D)
    assert out.dtype == torch.bfloat16
    assert lse.shape == (2, 3, 2)
    for b in range(2):
        for s in range(2):
            main = [i for i in indices[b, s].tolist()[: (3, 2)[b]] if i >= 0]
            more = [i for i in extra_indices[b, s].tolist()[: (2, 1)[b]] if i >= 0]
            keys = [window_rows[i] for i in main] + [extra_rows[i] for i in more]
            for head in range(3):
                golden, log_sum = attention(q[b, s, head], keys, float(sink[head]), 0.2)
                np.testing.assert_allclose(out[b, s, head].double(), golden, atol=2**-6)
                assert float(lse[b, head, s]) == pytest.approx(log_sum, rel=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_dense_decode_walks_the_pages_of_each_sequence(causal: bool) -> None:
    rows = normal(4, 12, D)
    cache = rows.reshape(3, 4, 1, D)[[2, 0, 1]]  # logical page 0 is physical page 1, ...
    table = torch.tensor([[1, 2, 0], [1, 2, 0]]).int()
    lens = torch.tensor([11, 5]).int()
    q = normal(5, 2, 3, 2, D)
    out, _ = flash_mla.flash_mla_with_kvcache(
        q, cache, table, lens, D, META, softmax_scale=0.2, causal=causal
    )
    for b in range(2):
        for s in range(3):
            seen = int(lens[b]) - (2 - s if causal else 0)
            for head in range(2):
                golden, _ = attention(q[b, s, head], list(rows[:seen]), -math.inf, 0.2)
                np.testing.assert_allclose(out[b, s, head].double(), golden, atol=2**-6)


def test_sparse_prefill_drops_rows_outside_and_reports_the_largest_score() -> None:
    q, kv = normal(6, 4, 2, D), normal(7, 9, 1, D)
    indices = torch.tensor([[[0, 8, 9]], [[-1, 3, 100]], [[-1, -1, 9]], [[1, 2, 3]]]).int()
    out, largest, lse = flash_mla.flash_mla_sparse_fwd(
        q, kv, indices, 0.2, D, topk_length=torch.tensor([3, 3, 3, 1])
    )
    kept = [[0, 8], [3], [], [1]]
    for row in range(4):
        for head in range(2):
            keys = [kv[i, 0] for i in kept[row]]
            golden, log_sum = attention(q[row, head], keys, -math.inf, 0.2)
            np.testing.assert_allclose(out[row, head].double(), golden, atol=2**-6)
            if keys:
                assert float(lse[row, head]) == pytest.approx(log_sum, rel=1e-5)
                scores = [0.2 * float(q[row, head].double() @ key.double()) for key in keys]
                assert float(largest[row, head]) == pytest.approx(max(scores), rel=1e-5)
            else:
                assert lse[row, head] == largest[row, head] == -math.inf


def test_the_value_is_the_first_channels() -> None:
    q, kv, indices = normal(8, 1, 1, D), normal(9, 3, 1, D), torch.tensor([[[0, 2]]])
    whole, *_ = flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.2, D)
    part, *_ = flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.2, 16)
    assert torch.equal(part, whole[..., :16])


def test_wrong_operands_are_refused() -> None:
    window, _ = window_cache(1, 10)
    extra, _ = compressed_cache(2, 6)
    q, indices = normal(3, 2, 1, 3, D), torch.zeros(2, 1, 2, dtype=torch.int32)
    call = flash_mla.flash_mla_with_kvcache
    with pytest.raises(UsageError, match="pass indices, or block_table"):
        call(q, normal(1, 3, 4, 1, D), None, None, D, META)
    with pytest.raises(UsageError, match="not both"):
        call(q, window, indices[:, 0], None, D, META, indices=indices, is_fp8_kvcache=True)
    with pytest.raises(UsageError, match="cache has shape"):
        call(q, extra, None, None, D, META, indices=indices, is_fp8_kvcache=True)
    with pytest.raises(UsageError, match="needs extra_indices"):
        call(q, window, None, None, D, META, indices=indices, is_fp8_kvcache=True,
             extra_k_cache=extra)  # fmt: skip
    with pytest.raises(UsageError, match="reach from 0 to 12"):
        call(q, window, None, None, D, META, indices=indices + torch.tensor([0, 12]).int(),
             is_fp8_kvcache=True)  # fmt: skip
    with pytest.raises(UsageError, match="indices has shape"):
        call(q, window, None, None, D, META, indices=indices[:1], is_fp8_kvcache=True)
    with pytest.raises(UsageError, match="its pages hold 4"):
        call(q, normal(1, 3, 4, 1, D), torch.zeros(2, 1).int(), torch.tensor([5, 1]), D, META)
    with pytest.raises(UsageError, match="kv has shape"):
        flash_mla.flash_mla_sparse_fwd(normal(1, 2, 2, D), normal(2, 3, 1, 8), indices, 1.0)
