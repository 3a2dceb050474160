"""Prefill attention on the bundled interpreter against the fp64 formula, and its schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import EXACT
from kernels.launch import counters, lnc_selected, reset_counters
from kernels.prefill_attention_nki import prefill_attention
from kernels.prefill_schedule import cut_of, visits_of
from kernels.sparse_attention_nki import sparse_attention
from tests.kernels.formulas import NUMERICS, layouts_of, normal

Problem = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]


def golden(
    q: torch.Tensor, rows: torch.Tensor, allowed: torch.Tensor, sink: torch.Tensor, scale: float
) -> np.ndarray:
    queries, keys, sinks = q.double().numpy(), rows.double().numpy(), sink.double().numpy()
    out = np.zeros(queries.shape)
    for t, seen in enumerate(allowed.numpy()):
        for h in range(queries.shape[1]):
            logits = np.append(keys[seen] @ queries[t, h] * scale, sinks[h])
            weights = np.exp(logits - logits.max())
            out[t, h] = weights[:-1] @ keys[seen] / weights.sum()
    return out


def problem(
    tokens: int, heads: int, dim: int, rows: int, open_share: float = 0.4, seed: int = 0
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    return (
        normal(tokens, heads, dim, seed=seed),
        normal(rows, dim, seed=seed + 1),
        torch.rand(tokens, rows, generator=generator) < open_share,
        torch.randn(heads, generator=generator),
        dim**-0.5,
    )


def assert_matches(arguments: Problem) -> None:
    q, rows, _, _, _ = arguments
    o = prefill_attention(*arguments, numerics=NUMERICS)
    want = golden(*arguments)
    assert o.dtype == torch.bfloat16
    assert o.shape == q.shape
    # P and o are rounded to bf16 (2^-9 each of the largest row), sums are fp32.
    reach = np.abs(rows.double().numpy()).max() if rows.numel() else 0.0
    assert np.abs(o.double().numpy() - want).max() <= reach * 2.0**-8
    rms = np.sqrt(((o.double().numpy() - want) ** 2).mean())
    assert rms <= 1.5 * 2.0**-9 * max(np.sqrt((want**2).mean()), 2.0**-10)


@pytest.mark.parametrize("heads", [128, 64, 16, 8, 1])
@pytest.mark.parametrize("tokens", [1, 3, 17])
@pytest.mark.parametrize("lnc", [1, 2])
def test_heads_per_rank(heads: int, tokens: int, lnc: int) -> None:
    with lnc_selected(lnc):
        assert_matches(problem(tokens, heads, 64, 50))


@pytest.mark.parametrize(("tokens", "heads"), [(128, 1), (20, 8), (3, 64)])
@pytest.mark.parametrize("lnc", [1, 2])
def test_real_latent_width(tokens: int, heads: int, lnc: int) -> None:
    with lnc_selected(lnc):
        assert_matches(problem(tokens, heads, 512, 700))


@pytest.mark.parametrize("rows", [1, 2, 127, 128, 129, 255, 257, 511, 512, 513, 1025])
@pytest.mark.parametrize("lnc", [1, 2])
def test_rows_at_tile_and_block_borders(rows: int, lnc: int) -> None:
    with lnc_selected(lnc):
        assert_matches(problem(3, 4, 32, rows))


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 160, 320, 512])
def test_head_dims_that_cut_into_pieces(dim: int) -> None:
    assert_matches(problem(5, 2, dim, 40))


@pytest.mark.parametrize(("tokens", "heads"), [(127, 1), (129, 1), (257, 1), (33, 16), (86, 3)])
@pytest.mark.parametrize("lnc", [1, 2])
def test_tokens_at_tile_and_query_block_borders(tokens: int, heads: int, lnc: int) -> None:
    with lnc_selected(lnc):
        assert_matches(problem(tokens, heads, 32, 90))


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_token_without_rows_gives_zero_beside_tokens_with_rows(lnc: int) -> None:
    q, rows, allowed, sink, scale = problem(4, 8, 64, 30)
    allowed[2] = False
    with lnc_selected(lnc):
        o = prefill_attention(q, rows, allowed, sink, scale, numerics=NUMERICS)
        assert not o[2].any()
        assert_matches((q, rows, allowed, sink, scale))
        none = torch.full((8,), -torch.inf)
        o = prefill_attention(q, rows, allowed, none, scale, numerics=NUMERICS)
    assert not o[2].any()
    assert o.isfinite().all()


def test_rows_in_one_half_of_the_keys_or_in_none_on_two_cores() -> None:
    q, rows, allowed, sink, scale = problem(6, 4, 64, 600, open_share=0.9)
    with lnc_selected(2):
        for hidden in (slice(0, 300), slice(300, 600), slice(0, 600)):
            masked = allowed.clone()
            masked[:, hidden] = False
            assert_matches((q, rows, masked, sink, scale))


def test_one_row_and_no_sink_returns_the_row() -> None:
    q, rows, allowed, _, scale = problem(3, 2, 64, 700, open_share=0.0)
    allowed[0, 4] = allowed[2, 699] = True
    o = prefill_attention(q, rows, allowed, torch.full((2,), -1e4), scale, numerics=NUMERICS)
    assert torch.equal(o[0], rows[4].expand(2, -1))
    assert torch.equal(o[2], rows[699].expand(2, -1))


def test_large_scores_and_a_large_scale_do_not_overflow() -> None:
    q, rows, allowed, sink, scale = problem(3, 2, 64, 600)
    assert_matches((q * 64, rows * 8, allowed, sink, scale))
    assert_matches((q, rows, allowed, sink, 64.0))


def test_it_agrees_with_the_gathering_kernel() -> None:
    q, rows, allowed, sink, scale = problem(9, 8, 64, 200)
    indices = torch.where(allowed, torch.arange(200), -1)
    ours = prefill_attention(q, rows, allowed, sink, scale, numerics=NUMERICS)
    theirs = sparse_attention(q, rows, indices, sink, scale, numerics=NUMERICS)
    assert torch.allclose(ours.float(), theirs.float(), atol=2**-8, rtol=2**-7)


def test_a_row_is_loaded_once_for_its_neighbours() -> None:
    q, rows, allowed, sink, scale = problem(64, 1, 512, 512)
    moved = {}
    indices = torch.where(allowed, torch.arange(512), -1)
    for name, op, which in (
        ("shared", prefill_attention, allowed),
        ("gathered", sparse_attention, indices),
    ):
        reset_counters()
        op(q, rows, which, sink, scale, numerics=NUMERICS)
        moved[name] = counters().dma_bytes
    assert moved["shared"] < 1.5 * rows.numel() * 2
    assert moved["gathered"] > 30 * moved["shared"]


def test_blocks_that_nobody_sees_are_neither_loaded_nor_computed() -> None:
    q, rows, allowed, sink, scale = problem(4, 2, 64, 4096)
    allowed[:, 512:3584] = False
    all_blocks, spent = [], []
    for mask in (allowed, allowed | True):
        reset_counters()
        assert_matches((q, rows, mask, sink, scale))
        all_blocks.append(counters().instructions)
        spent.append(counters().dma_bytes)
    assert all_blocks[0] < 0.4 * all_blocks[1]
    assert spent[0] < 0.4 * spent[1]


def test_visits_cover_what_is_allowed_exactly_once() -> None:
    generator = torch.Generator().manual_seed(3)
    for num_tokens, heads, num_rows in ((5, 64, 1500), (130, 8, 700), (9, 1, 31), (300, 2, 129)):
        allowed = torch.rand(num_tokens, num_rows, generator=generator) < 0.1
        allowed[:, num_rows // 4 : 3 * num_rows // 4] = False
        for cores in (1, 2):
            cut = cut_of(num_tokens, heads, num_rows, cores)
            visits = visits_of(allowed, cut)
            blocks, number, tokens, keys = visits.allowed.shape
            assert (tokens, keys) == (cut.block_tokens, cut.visit_keys)
            assert cut.tile_tokens * heads <= 128
            assert cut.block_tokens <= 128
            seen = torch.zeros(blocks * tokens, num_rows, dtype=torch.int64)
            column = torch.arange(keys)
            offset = column % cut.partitions * cut.rows_a_partition + column // cut.partitions
            for block in range(blocks):
                for v in range(number):
                    first = int(visits.starts[0, block * number + v])
                    assert 0 <= first <= num_rows - keys
                    part = seen[block * tokens : (block + 1) * tokens]
                    part[:, first + offset] += visits.allowed[block, v].long()
            assert torch.equal(seen[:num_tokens], allowed.long())
            assert not seen[num_tokens:].any()


def test_few_kernels_serve_all_masks() -> None:
    cut = cut_of(4, 2, 512 * 40, 1)
    numbers = set()
    for blocks in range(41):
        allowed = torch.zeros(4, 512 * 40, dtype=torch.bool)
        allowed[1, : 512 * blocks : 512] = True
        numbers.add(visits_of(allowed, cut).allowed.shape[1])
    assert numbers == {1, 2, 4, 8, 16, 32, 40}


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_give_the_same_bytes_and_are_not_modified(layout: str) -> None:
    q, rows, allowed, sink, scale = problem(4, 8, 64, 30)
    o = prefill_attention(q, rows, allowed, sink, scale, numerics=NUMERICS)
    q_view, rows_view = layouts_of(q)[layout], layouts_of(rows)[layout]
    again = prefill_attention(q_view, rows_view, allowed, sink, scale, numerics=NUMERICS)
    assert torch.equal(again, o)
    assert torch.equal(q_view, q)
    assert torch.equal(rows_view, rows)


def test_empty_operands() -> None:
    q, rows, allowed, sink, scale = problem(3, 8, 64, 30)
    reset_counters()
    none = prefill_attention(q[:0], rows, allowed[:0], sink, scale, numerics=NUMERICS)
    assert none.shape == (0, 8, 64)
    assert counters().num_launches == 0
    blind = prefill_attention(q, rows[:0], allowed[:, :0], sink, scale, numerics=NUMERICS)
    assert blind.shape == q.shape
    assert not blind.any()


def test_what_is_refused() -> None:
    q, rows, allowed, sink, scale = problem(2, 2, 64, 30)
    with pytest.raises(UsageError, match="allowed has shape"):
        prefill_attention(q, rows, allowed[:, :29], sink, scale, numerics=NUMERICS)
    with pytest.raises(UsageError, match="pass a bool mask"):
        prefill_attention(q, rows, allowed.int(), sink, scale, numerics=NUMERICS)
    with pytest.raises(KernelError, match="ends at 512") as found:
        prefill_attention(*problem(1, 1, 544, 4), numerics=NUMERICS)
    assert found.value.status == "UNSUPPORTED"
    with pytest.raises(KernelError, match="scale is -1"):
        prefill_attention(q, rows, allowed, sink, -1.0, numerics=NUMERICS)
    with pytest.raises(KernelError, match="fp8_max 240"):
        prefill_attention(q, rows, allowed, sink, scale, numerics=EXACT)
