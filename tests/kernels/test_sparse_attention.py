"""Sparse MLA attention on the bundled interpreter against the fp64 formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import EXACT
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.sparse_attention_nki import sparse_attention, tokens_per_group
from tests.kernels.formulas import NUMERICS, layouts_of, normal


def golden(
    q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sink: torch.Tensor, scale: float
) -> np.ndarray:
    queries, rows, sinks = q.double().numpy(), kv.double().numpy(), sink.double().numpy()
    out = np.zeros(queries.shape)
    for t, wanted in enumerate(indices.numpy()):
        keys = rows[wanted[wanted >= 0]]
        for h in range(queries.shape[1]):
            logits = np.append(keys @ queries[t, h] * scale, sinks[h])
            weights = np.exp(logits - logits.max())
            out[t, h] = weights[:-1] @ keys / weights.sum()
    return out


def problem(
    tokens: int, heads: int, dim: int, rows: int, entries: int, absent: float = 0.2, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, rows, (tokens, entries), generator=generator)
    indices[torch.rand(tokens, entries, generator=generator) < absent] = -1
    return (
        normal(tokens, heads, dim, seed=seed),
        normal(rows, dim, seed=seed + 1),
        indices,
        torch.randn(heads, generator=generator),
        dim**-0.5,
    )


def assert_matches(arguments: tuple[torch.Tensor, ...]) -> None:
    q, kv, indices, _, _ = arguments
    o = sparse_attention(*arguments, numerics=NUMERICS)
    want = golden(*arguments)
    assert o.dtype == torch.bfloat16
    assert o.shape == q.shape
    # P and o are rounded to bf16 (2^-9 each of the largest row), sums are fp32.
    reach = np.abs(kv.double().numpy()).max() if indices.numel() else 0.0
    assert np.abs(o.double().numpy() - want).max() <= reach * 2.0**-8
    rms = np.sqrt(((o.double().numpy() - want) ** 2).mean())
    assert rms <= 1.5 * 2.0**-9 * max(np.sqrt((want**2).mean()), 2.0**-10)


@pytest.mark.parametrize("heads", [64, 16, 8, 1])
@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_heads_per_rank(heads: int, tokens: int) -> None:
    assert_matches(problem(tokens, heads, 64, 50, 24))


@pytest.mark.parametrize("heads", [64, 1])
def test_real_decode_geometry(heads: int) -> None:
    assert_matches(problem(2, heads, 512, 700, 640))


@pytest.mark.parametrize("entries", [1, 2, 127, 128, 129, 255, 257, 513, 640])
def test_entries_at_tile_and_bank_borders(entries: int) -> None:
    assert_matches(problem(3, 4, 32, 300, entries))


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 160, 320, 512])
def test_head_dims_that_cut_into_pieces(dim: int) -> None:
    assert_matches(problem(5, 2, dim, 40, 20))


@pytest.mark.parametrize("tokens", [31, 32, 33, 65])
def test_tokens_at_group_borders(tokens: int) -> None:
    assert tokens_per_group(tokens, 1, 64, 24) == min(tokens, 32)
    assert_matches(problem(tokens, 1, 64, 100, 24))


def test_a_token_without_keys_gives_zero_beside_tokens_with_keys() -> None:
    q, kv, indices, sink, scale = problem(4, 8, 64, 30, 24)
    indices[2] = -1
    o = sparse_attention(q, kv, indices, sink, scale, numerics=NUMERICS)
    assert not o[2].any()
    assert_matches((q, kv, indices, sink, scale))


def test_no_key_and_a_sink_of_minus_infinity_is_zero_not_nan() -> None:
    q, kv, indices, _, scale = problem(3, 4, 64, 30, 24)
    indices[1] = -1
    sink = torch.full((4,), -torch.inf)
    o = sparse_attention(q, kv, indices, sink, scale, numerics=NUMERICS)
    assert not o[1].any()
    assert torch.isfinite(o).all()


def test_no_keys_at_all_give_zero() -> None:
    q, kv, indices, sink, scale = problem(3, 4, 64, 30, 24, absent=1.1)
    assert not sparse_attention(q, kv, indices, sink, scale, numerics=NUMERICS).any()
    reset_counters()
    assert not sparse_attention(q, kv, indices[:, :0], sink, scale, numerics=NUMERICS).any()
    assert not sparse_attention(q, kv[:0], indices, sink, scale, numerics=NUMERICS).any()
    assert counters().num_launches == 2


def test_the_sink_takes_weight_but_adds_nothing() -> None:
    q, kv, indices, _, scale = problem(2, 2, 64, 30, 24)
    free = sparse_attention(q, kv, indices, torch.full((2,), -100.0), scale, numerics=NUMERICS)
    drowned = sparse_attention(q, kv, indices, torch.full((2,), 100.0), scale, numerics=NUMERICS)
    assert free.abs().max() > 0.1
    assert drowned.abs().max() < 1e-30


def test_one_key_and_no_sink_returns_the_row() -> None:
    q, kv, _, _, scale = problem(3, 2, 64, 30, 24)
    indices = torch.tensor([[4], [-1], [29]])
    o = sparse_attention(q, kv, indices, torch.full((2,), -1e4), scale, numerics=NUMERICS)
    assert torch.equal(o[0], kv[4].expand(2, -1))
    assert torch.equal(o[2], kv[29].expand(2, -1))


def test_large_scores_do_not_overflow() -> None:
    q, kv, indices, sink, scale = problem(3, 2, 64, 30, 24)
    assert_matches((q * 64, kv * 8, indices, sink, scale))


def test_the_order_of_keys_does_not_matter_beyond_rounding() -> None:
    q, kv, indices, sink, scale = problem(4, 8, 64, 30, 24)
    o = sparse_attention(q, kv, indices, sink, scale, numerics=NUMERICS)
    flipped = sparse_attention(q, kv, indices.flip(1), sink, scale, numerics=NUMERICS)
    assert torch.allclose(o.float(), flipped.float(), atol=2**-8, rtol=2**-7)


def test_heads_split_over_ranks_reassemble_to_the_whole() -> None:
    q, kv, indices, sink, scale = problem(3, 16, 64, 50, 24)
    whole = sparse_attention(q, kv, indices, sink, scale, numerics=NUMERICS)
    for per_rank in (8, 1):
        parts = [
            sparse_attention(
                q[:, i : i + per_rank],
                kv,
                indices,
                sink[i : i + per_rank],
                scale,
                numerics=NUMERICS,
            )
            for i in range(0, 16, per_rank)
        ]
        assert torch.allclose(torch.cat(parts, 1).float(), whole.float(), atol=2**-8, rtol=2**-7)


@pytest.mark.parametrize(("tokens", "heads"), [(1, 8), (1, 1), (2, 4), (5, 16)])
@pytest.mark.parametrize("entries", [1, 2, 24, 131])
def test_two_cores_share_the_work(tokens: int, heads: int, entries: int) -> None:
    with lnc_selected(2):
        assert_matches(problem(tokens, heads, 64, 50, entries))


def test_one_token_with_all_keys_in_one_half_or_none_at_all_on_two_cores() -> None:
    q, kv, indices, sink, scale = problem(1, 4, 64, 50, 24, absent=0.0)
    with lnc_selected(2):
        for hidden in (slice(0, 12), slice(12, 24), slice(0, 24)):
            masked = indices.clone()
            masked[:, hidden] = -1
            assert_matches((q, kv, masked, sink, scale))


def test_one_head_of_one_token_is_gathered_once_by_both_cores_together() -> None:
    arguments = problem(1, 1, 512, 700, 640)
    moved = []
    for degree in (1, 2):
        reset_counters()
        with lnc_selected(degree):
            sparse_attention(*arguments, numerics=NUMERICS)
        moved.append(counters().dma_bytes)
    assert moved[1] < 1.05 * moved[0]


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    q, kv, indices, sink, scale = problem(4, 8, 64, 30, 24)
    o = sparse_attention(q, kv, indices, sink, scale, numerics=NUMERICS)
    q_view, kv_view = layouts_of(q)[layout], layouts_of(kv)[layout]
    id_view = layouts_of(indices)[layout]
    again = sparse_attention(q_view, kv_view, id_view, sink, scale, numerics=NUMERICS)
    assert torch.equal(again, o)
    assert torch.equal(q_view, q)
    assert torch.equal(kv_view, kv)
    assert torch.equal(id_view, indices)


def test_no_tokens_give_no_rows_without_a_launch() -> None:
    q, kv, indices, sink, scale = problem(0, 8, 64, 30, 24)
    reset_counters()
    assert sparse_attention(q, kv, indices, sink, scale, numerics=NUMERICS).shape == (0, 8, 64)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    q, kv, indices, sink, scale = problem(2, 2, 64, 30, 24)
    with pytest.raises(UsageError, match="kv has 30 rows"):
        sparse_attention(q, kv, indices + 7, sink, scale, numerics=NUMERICS)
    with pytest.raises(UsageError, match="reach from -2"):
        sparse_attention(q, kv, indices - 1, sink, scale, numerics=NUMERICS)
    with pytest.raises(KernelError, match="ends at 512") as found:
        sparse_attention(*problem(1, 1, 544, 4, 2), numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="fp8_max 240"):
        sparse_attention(q, kv, indices, sink, scale, numerics=EXACT)
