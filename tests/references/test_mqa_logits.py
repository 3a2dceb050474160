"""Indexer logits over plain, paged and block-sparse keys against loops over keys and heads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from harness.core.errors import UsageError
from harness.core.numerics import QUANTISED
from references import deep_gemm
from references.paged_caches import entry_bytes, page_values, pages_of
from references.quantise_fp4 import dequantise_fp4, quantise_fp4
from references.quantise_fp8 import dequantise_fp8, quantise_fp8
from tests.references.draws import normal

F64 = npt.NDArray[np.float64]
HEADS, WIDTH, KEYS = 4, 128, 21


def scores(q: F64, keys: F64, weights: F64) -> F64:
    result = np.zeros((len(q), len(keys)))
    for row in range(len(q)):
        for head in range(q.shape[1]):
            result[row] += weights[row, head] * np.maximum(keys @ q[row, head], 0)
    return result


class Operands:
    """fp4 queries and keys, as values and packed, for 6 rows."""

    def __init__(self) -> None:
        q = normal(1, 6 * HEADS, WIDTH)
        self.q_codes, self.q_scale = quantise_fp4(q, 32, numerics=QUANTISED)
        self.k_codes, self.k_scale = quantise_fp4(normal(2, KEYS, WIDTH), 32, numerics=QUANTISED)
        self.weights = normal(3, 6, HEADS, dtype=torch.float32)
        q = dequantise_fp4(self.q_codes, self.q_scale, 32, numerics=QUANTISED)
        k = dequantise_fp4(self.k_codes, self.k_scale, 32, numerics=QUANTISED)
        queries = q.double().reshape(6, HEADS, WIDTH).numpy()
        self.dense = scores(queries, k.double().numpy(), self.weights.double().numpy())
        self.q = (
            self.q_codes.reshape(6, HEADS, WIDTH // 2).view(torch.int8),
            self.q_scale.view(torch.int32).reshape(6, HEADS),
        )
        self.kv = (self.k_codes.view(torch.int8), self.k_scale.view(torch.int32).reshape(KEYS))


@pytest.fixture(scope="module")
def operands() -> Operands:
    return Operands()


def test_each_row_scores_its_own_range(operands: Operands) -> None:
    ks, ke = torch.tensor([0, 0, 3, 5, 20, 7]), torch.tensor([21, 4, 9, 5, 21, 15])
    ours = deep_gemm.fp8_fp4_mqa_logits(operands.q, operands.kv, operands.weights, ks, ke)
    for row in range(6):
        inside = slice(int(ks[row]), int(ke[row]))
        np.testing.assert_allclose(
            ours[row, inside], operands.dense[row, inside], rtol=1e-4, atol=1e-4
        )
        outside = torch.ones(KEYS, dtype=torch.bool)
        outside[inside] = False
        assert bool((ours[row, outside] == -torch.inf).all())
    narrow = deep_gemm.fp8_fp4_mqa_logits(
        operands.q, operands.kv, operands.weights, ks, ke, max_seqlen_k=8
    )
    assert narrow.shape == (6, 8)
    assert torch.equal(narrow[2, :6], ours[2, 3:9])
    assert torch.equal(narrow[4], torch.cat((ours[4, 20:], torch.full((7,), -torch.inf))))


def test_scales_may_be_separate_bytes(operands: Operands) -> None:
    everything = (torch.zeros(6).long(), torch.full((6,), KEYS))
    packed = deep_gemm.fp8_fp4_mqa_logits(operands.q, operands.kv, operands.weights, *everything)
    unpacked = deep_gemm.fp8_fp4_mqa_logits(
        (operands.q[0], operands.q_scale.reshape(6, HEADS, 4)),
        (operands.kv[0], operands.k_scale),
        operands.weights,
        *everything,
    )
    assert torch.equal(packed, unpacked)


@pytest.mark.parametrize("kind", ["fp4", "fp8"])
def test_pages_in_any_order_score_like_plain_keys(operands: Operands, kind: str) -> None:
    page, lens = 4, torch.tensor([[20, 21], [0, 1], [8, 9]])
    table = torch.tensor([[5, 0, 3, 1, 2, 4], [2, 3, 4, 5, 1, 0], [1, 4, 0, 2, 3, 5]])
    if kind == "fp4":
        packed, q = pages_of(operands.k_codes, operands.k_scale, page), operands.q
        q4 = (q[0].reshape(3, 2, HEADS, -1), q[1].reshape(3, 2, HEADS))
        dense = operands.dense
    else:
        codes, scale = quantise_fp8(normal(2, KEYS, WIDTH), numerics=QUANTISED)
        one = torch.full((KEYS, 1), 0.5)
        packed = pages_of(codes, one.view(torch.uint8), page)
        del scale
        q_codes, _ = quantise_fp8(normal(1, 6 * HEADS, WIDTH), numerics=QUANTISED)
        q4 = q_codes.view(torch.float8_e4m3fn).reshape(3, 2, HEADS, WIDTH)
        values = codes.view(torch.float8_e4m3fn).double().numpy() * 0.5
        queries = q4.double().reshape(6, HEADS, WIDTH).numpy()
        dense = scores(queries, values, operands.weights.double().numpy())
    for sequence in range(3):
        cache = torch.zeros_like(packed)
        cache[table[sequence]] = packed
        ours = deep_gemm.fp8_fp4_paged_mqa_logits(
            q4, cache, operands.weights, lens, table[sequence].expand(3, 6).int(), None, 24
        )
        assert ours.shape == (6, 24)
        for row, length in enumerate(lens.flatten().tolist()):
            np.testing.assert_allclose(
                ours[row, :length], dense[row, :length], rtol=1e-4, atol=1e-2
            )
            assert bool((ours[row, length:] == -torch.inf).all())


def test_sparse_logits_are_the_chosen_blocks_of_the_dense_ones(operands: Operands) -> None:
    blocks = torch.tensor([[0, 2], [1, -1], [0, 1], [2, -1], [-1, -1], [1, 2]])
    metadata = deep_gemm.get_sparse_mqa_logits_metadata(blocks.int(), 8)
    everything = (torch.zeros(6).long(), torch.full((6,), KEYS))
    dense = deep_gemm.fp8_fp4_mqa_logits(operands.q, operands.kv, operands.weights, *everything)
    ours = deep_gemm.fp8_fp4_sparse_mqa_logits(
        operands.q, operands.kv, operands.weights, *everything, metadata
    )
    assert ours.dtype == torch.bfloat16
    assert ours.shape == (6, 16)
    padded = torch.cat((dense, torch.full((6, 3), -torch.inf)), dim=1).bfloat16()
    for row in range(6):
        for slot, block in enumerate(blocks[row].tolist()):
            part = ours[row, 8 * slot : 8 * slot + 8]
            if block < 0:
                assert bool((part == -torch.inf).all())
            else:
                assert torch.equal(part, padded[row, 8 * block : 8 * block + 8])
    cache = pages_of(operands.k_codes, operands.k_scale, 4)
    paged = deep_gemm.fp8_fp4_paged_sparse_mqa_logits(
        (operands.q[0].unsqueeze(0), operands.q[1].unsqueeze(0)),
        cache,
        operands.weights,
        torch.full((1, 6), KEYS),
        torch.arange(6).unsqueeze(0),
        metadata,
    )
    assert torch.equal(paged, ours)


@pytest.mark.parametrize(
    ("layout", "width", "size"),
    [("kv_fp8", 512, 528), ("kv_fp4", 512, 288), ("index_fp4", 128, 68), ("index_fp8", 128, 132)],
)
def test_entries_have_the_published_size(layout: str, width: int, size: int) -> None:
    assert sum(entry_bytes(layout, width)) == size


def test_pages_are_planar_and_may_lie_apart() -> None:
    x = normal(4, 10, 64)
    codes, scale = quantise_fp8(x, numerics=QUANTISED)
    cache = pages_of(codes, scale, 4)
    assert cache.shape == (3, 4, 1, 66)
    flat = cache.reshape(3, -1)
    assert torch.equal(flat[0, :64], codes[0]), "data rows first"
    assert torch.equal(flat[0, 256:258], scale[0]), "then scale rows"
    wide = torch.zeros(3, 512, dtype=torch.uint8)
    wide[:, : 4 * 66] = flat
    apart = wide[:, : 4 * 66].view(3, 4, 1, 66)
    assert apart.stride(0) == 512
    expected = dequantise_fp8(codes, scale, numerics=QUANTISED)
    for pages in (cache, apart):
        assert torch.equal(page_values(pages, "kv_fp8", 64)[:10].bfloat16(), expected)


def test_wrong_operands_are_refused(operands: Operands) -> None:
    everything = (torch.zeros(6).long(), torch.full((6,), KEYS))
    logits, weights = deep_gemm.fp8_fp4_mqa_logits, operands.weights
    with pytest.raises(UsageError, match="needs scales"):
        logits(operands.q[0], operands.kv, weights, *everything)
    with pytest.raises(UsageError, match="ke has shape"):
        logits(operands.q, operands.kv, weights, everything[0], everything[1][:3])
    with pytest.raises(UsageError, match="scales has shape"):
        logits(operands.q, (operands.kv[0], operands.kv[1][:3]), weights, *everything)
    with pytest.raises(UsageError, match="8 or 16"):
        deep_gemm.get_sparse_mqa_logits_metadata(torch.zeros(1, 1, dtype=torch.int32), 4)
    for wrong in ([[2, 1]], [[1, 1]], [[-1, 0]]):
        with pytest.raises(UsageError, match="ascend"):
            deep_gemm.get_sparse_mqa_logits_metadata(torch.tensor(wrong))
    cache = pages_of(operands.k_codes, operands.k_scale, 4)
    paged, q = (
        deep_gemm.fp8_fp4_paged_mqa_logits,
        (
            operands.q[0].unsqueeze(0),
            operands.q[1].unsqueeze(0),
        ),
    )
    table = torch.arange(6).unsqueeze(0)
    with pytest.raises(UsageError, match="room for 16"):
        paged(q, cache, weights, torch.full((1, 6), 21), table, None, 16)
    with pytest.raises(UsageError, match="outside 0"):
        paged(q, cache, weights, torch.full((1, 6), 21), table + 1, None, 24)
    with pytest.raises(UsageError, match="cache has shape"):
        paged(q, cache[..., :60], weights, torch.full((1, 6), 21), table, None, 24)
