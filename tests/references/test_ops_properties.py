"""Metamorphic properties: what must not change, whatever the numbers are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.numerics import EXACT, FAST, QUANTISED, TRN2, Numerics
from references.op_table import TABLE
from tests.references.draws import fp4_weight, fp8_weight, normal

MODES = st.sampled_from([EXACT, QUANTISED, TRN2, FAST])
FP64_MODES = st.sampled_from([EXACT, QUANTISED, TRN2])
SEEDS = st.integers(0, 2**31)
few = settings(max_examples=25, deadline=None)


def act(numerics: Numerics, seed: int, *shape: int) -> torch.Tensor:
    return normal(seed, *shape, dtype=getattr(torch, numerics.activation))


def same(a: torch.Tensor, b: torch.Tensor, numerics: Numerics) -> bool:
    """Bit for bit where sums are float64 and results rounded, else to the noise of the sums."""
    if numerics.accumulate == "float64" and a.dtype == torch.bfloat16:
        return torch.equal(a, b)
    noise = 1e-12 if numerics.accumulate == "float64" else 2.0**-8
    return torch.allclose(a.double(), b.double(), rtol=noise, atol=noise)


@few
@given(SEEDS, MODES)
def test_rows_of_a_linear_do_not_see_each_other(seed: int, numerics: Numerics) -> None:
    x, weight = act(numerics, seed, 6, 64), fp8_weight(seed % 1000, 32, 64)
    whole = TABLE.linear_fp8(x, weight, "activation", numerics=numerics)
    alone = [TABLE.linear_fp8(row[None], weight, "activation", numerics=numerics) for row in x]
    assert same(whole, torch.cat(alone), numerics)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    shuffled = TABLE.linear_fp8(x[order], weight, "activation", numerics=numerics)
    assert same(whole[order], shuffled, numerics)


@few
@given(SEEDS, FP64_MODES)
def test_partial_sums_over_a_sharded_input_add_up_to_the_whole(
    seed: int, numerics: Numerics
) -> None:
    x, weight = act(numerics, seed, 3, 128), fp8_weight(seed % 1000, 64, 128)
    whole = TABLE.linear_fp8(x, weight, "accumulate", numerics=numerics)
    parts = torch.zeros_like(whole)
    for shard in range(2):
        columns, tiles = slice(64 * shard, 64 * (shard + 1)), slice(2 * shard, 2 * (shard + 1))
        half = type(weight)(
            weight.codes[:, columns].contiguous(),
            weight.scale[:, tiles].contiguous(),
            "fp8_block",
        )
        parts += TABLE.linear_fp8(x[:, columns].contiguous(), half, "accumulate", numerics=numerics)
    assert torch.allclose(whole, parts, rtol=1e-12, atol=1e-12)


@few
@given(SEEDS, MODES, st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_grouped_experts_equal_each_expert_alone_and_empty_ones_are_not_read(
    seed: int, numerics: Numerics, sizes: list[int]
) -> None:
    x, weight = act(numerics, seed, sum(sizes), 32), fp4_weight(seed % 1000, 4, 8, 32)
    for expert, size in enumerate(sizes):
        if size == 0:
            weight.scale[expert] = 255  # NaN: reading it would show
    whole = TABLE.linear_fp4_grouped(x, weight, torch.tensor(sizes), numerics=numerics)
    assert bool(whole.isfinite().all())
    first = 0
    for expert, size in enumerate(sizes):
        only = torch.zeros(4, dtype=torch.int64)
        only[expert] = size
        rows = x[first : first + size]
        alone = TABLE.linear_fp4_grouped(rows, weight, only, numerics=numerics)
        assert same(whole[first : first + size], alone, numerics)
        first += size


@few
@given(SEEDS, FP64_MODES, st.integers(-6, 6))
def test_rms_norm_ignores_a_power_of_two(seed: int, numerics: Numerics, exponent: int) -> None:
    x, weight = act(numerics, seed, 3, 32), normal(seed + 1, 32)
    ours = TABLE.rms_norm(x, weight, 0.0, numerics=numerics)
    assert torch.equal(ours, TABLE.rms_norm(x * 2.0**exponent, weight, 0.0, numerics=numerics))


@few
@given(SEEDS, st.integers(0, 10**6))
def test_the_inverse_rotation_undoes_the_rotation(seed: int, position: int) -> None:
    x = normal(seed, 2, 3, 16, dtype=torch.float64)
    angles = (torch.arange(2) + position).unsqueeze(1) * torch.tensor([1.0, 0.1, 0.01, 1e-3])
    cos, sin = angles.double().cos(), angles.double().sin()
    turned = TABLE.rope(x, cos, sin, numerics=EXACT)
    assert torch.equal(turned[..., :8], x[..., :8])
    back = TABLE.rope(turned, cos, -sin, numerics=EXACT)
    assert torch.allclose(back, x, rtol=0, atol=1e-14)
    lengths = turned.reshape(2, 3, 8, 2).norm(dim=-1)
    assert torch.allclose(lengths, x.reshape(2, 3, 8, 2).norm(dim=-1))


@few
@given(SEEDS)
def test_rotated_dot_products_depend_on_the_distance_only(seed: int) -> None:
    q, k = normal(seed, 2, 8, dtype=torch.float64), normal(seed + 1, 2, 8, dtype=torch.float64)
    frequencies = torch.tensor([1.0, 0.2, 0.05, 0.01], dtype=torch.float64)

    def dot(q_position: int, k_position: int) -> torch.Tensor:
        turned = []
        for x, position in ((q, q_position), (k, k_position)):
            angle = (torch.tensor([position, position]).unsqueeze(1) * frequencies).double()
            turned.append(TABLE.rope(x, angle.cos(), angle.sin(), numerics=EXACT))
        return (turned[0] * turned[1]).sum(-1)

    assert torch.allclose(dot(7, 3), dot(104, 100), atol=1e-12)


@few
@given(SEEDS, MODES)
def test_attention_ignores_key_order_padding_and_rows_it_does_not_name(
    seed: int, numerics: Numerics
) -> None:
    q, kv, sink = act(numerics, seed, 2, 3, 16), act(numerics, seed + 1, 8, 16), normal(seed, 3)
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randperm(7, generator=generator)[:4] + 1 for _ in range(2)])
    plain = TABLE.sparse_attention(q, kv, indices, sink, 0.3, numerics=numerics)
    poisoned = kv.clone()
    named = torch.zeros(8, dtype=torch.bool).index_fill(0, indices.flatten(), True)
    poisoned[~named] = torch.nan
    absent = torch.full((2, 3), -1)
    padded = torch.cat((absent, indices.flip(1), absent), dim=1)
    again = TABLE.sparse_attention(q, poisoned, padded, sink, 0.3, numerics=numerics)
    assert same(plain, again, numerics)


@few
@given(SEEDS, FP64_MODES)
def test_one_key_without_a_sink_returns_the_key(seed: int, numerics: Numerics) -> None:
    q, kv = act(numerics, seed, 2, 3, 16), act(numerics, seed + 1, 5, 16)
    sink = torch.full((3,), -torch.inf)
    ours = TABLE.sparse_attention(q, kv, torch.tensor([[4], [0]]), sink, 0.3, numerics=numerics)
    assert torch.equal(ours, kv[[4, 0]].unsqueeze(1).expand(2, 3, 16))


@pytest.mark.parametrize("sink", [-torch.inf, -100.0, 0.0, 100.0])
def test_a_row_without_keys_is_zero_whatever_the_sink(sink: float) -> None:
    q, kv, sinks = normal(1, 2, 3, 16), normal(2, 4, 16), torch.full((3,), sink)
    indices = torch.tensor([[-1, -1], [-1, 2]])
    for numerics in (EXACT, QUANTISED, FAST):
        o = TABLE.sparse_attention(q, kv, indices, sinks, 0.3, numerics=numerics)
        assert not bool(o[0].any())
        assert bool(o.isfinite().all())


@few
@given(SEEDS)
def test_a_larger_sink_shrinks_the_output_and_keeps_its_direction(seed: int) -> None:
    q, kv = normal(seed, 1, 1, 16, dtype=torch.float64), normal(seed + 1, 5, 16)
    indices = torch.arange(5).unsqueeze(0)
    outputs = [
        TABLE.sparse_attention(q, kv, indices, torch.tensor([sink]), 0.3, numerics=EXACT)
        for sink in (-2.0, 3.0)
    ]
    ratio = outputs[1] / outputs[0]
    assert torch.allclose(ratio, ratio.flatten()[0].expand_as(ratio))
    assert 0 < float(ratio.flatten()[0]) < 1


@few
@given(SEEDS, st.integers(-4, 4))
def test_index_scores_scale_with_the_query_and_equal_keys_tie(seed: int, exponent: int) -> None:
    q = TABLE.dequantise_fp4(
        *TABLE.quantise_fp4(normal(seed, 6, 32), 32, numerics=QUANTISED), 32, numerics=QUANTISED
    ).reshape(2, 3, 32)
    keys = TABLE.dequantise_fp4(
        *TABLE.quantise_fp4(normal(seed + 1, 5, 32), 32, numerics=QUANTISED), 32, numerics=QUANTISED
    )
    weights = normal(seed + 2, 2, 3, dtype=torch.float64)
    scores = TABLE.index_scores(q, keys, weights, numerics=QUANTISED)
    scaled = TABLE.index_scores(q * 2.0**exponent, keys, weights, numerics=QUANTISED)
    assert torch.equal(scores * 2.0**exponent, scaled)
    repeated = TABLE.index_scores(q, keys.repeat(9, 1), weights, numerics=QUANTISED)
    assert torch.equal(repeated, scores.repeat(1, 9)), "equal keys must tie exactly"


@few
@given(SEEDS, st.integers(1, 12), st.integers(0, 20))
def test_topk_ignores_what_is_not_visible(seed: int, top_k: int, visible: int) -> None:
    scores = normal(seed, 3, 20, dtype=torch.float64)
    seen = torch.full((3,), visible)
    ours = TABLE.topk_positions(scores, seen, top_k, None, numerics=EXACT)
    poisoned = scores.clone()
    poisoned[:, visible:] = torch.nan
    assert torch.equal(ours, TABLE.topk_positions(poisoned, seen, top_k, None, numerics=EXACT))
    taken = ours[0][ours[0] >= 0].tolist()
    assert taken == sorted(set(taken))
    assert len(taken) == min(top_k, visible)
    wider = TABLE.topk_positions(
        torch.cat((scores, scores.new_full((3, 7), 1e9)), dim=1), seen, top_k, None, numerics=EXACT
    )
    assert torch.equal(ours, wider[:, : ours.shape[1]])


@few
@given(SEEDS, st.integers(1, 5), st.integers(1, 21))
def test_candidates_are_whole_blocks_and_hold_the_newest_entry(
    seed: int, size: int, visible: int
) -> None:
    scores = normal(seed, 1, 20, dtype=torch.float64)
    visible = min(visible, 20)
    mask = TABLE.candidate_blocks(scores, torch.tensor([visible]), size, 2, numerics=EXACT)[0]
    assert bool(mask[visible - 1])
    for first in range(0, 20, size):
        assert len(set(mask[first : first + size].tolist())) == 1
    everything = TABLE.candidate_blocks(scores, torch.tensor([visible]), size, 99, numerics=EXACT)
    assert int(everything.sum()) == min(20, -(-visible // size) * size)


@few
@given(SEEDS)
def test_sinkhorn_makes_rows_and_columns_sum_to_one(seed: int) -> None:
    streams = normal(seed, 2, 4, 16, dtype=torch.float64)
    fn, base = normal(seed + 1, 24, 64) * 0.05, normal(seed + 2, 24) * 0.5
    scale = torch.ones(3)
    _, _, comb = TABLE.hc_mixes(streams, fn, base, scale, 1e-20, 1e-6, 20, numerics=EXACT)
    ones = torch.ones(2, 4, dtype=torch.float64)
    assert torch.allclose(comb.sum(1), ones, atol=1e-5), "columns were divided last"
    assert torch.allclose(comb.sum(2), ones, atol=1e-3)
    assert bool((comb > 0).all())


@few
@given(SEEDS, st.integers(-5, 5))
def test_mixing_coefficients_ignore_the_size_of_the_streams(seed: int, exponent: int) -> None:
    streams = normal(seed, 2, 4, 16, dtype=torch.float64)
    fn, base, scale = normal(seed + 1, 24, 64) * 0.05, normal(seed + 2, 24), torch.ones(3)
    ours = TABLE.hc_mixes(streams, fn, base, scale, 0.0, 1e-6, 4, numerics=EXACT)
    scaled = TABLE.hc_mixes(streams * 2.0**exponent, fn, base, scale, 0.0, 1e-6, 4, numerics=EXACT)
    for a, b in zip(ours, scaled, strict=True):
        assert torch.equal(a, b)


@few
@given(SEEDS)
def test_collapse_after_an_identity_expand_finds_the_stream_again(seed: int) -> None:
    streams, y = normal(seed, 3, 4, 8), normal(seed + 1, 3, 8)
    identity = torch.eye(4, dtype=torch.float64).expand(3, 4, 4)
    nothing = torch.zeros(3, 4, dtype=torch.float64)
    out = TABLE.hc_expand(y, streams, nothing, identity, numerics=QUANTISED)
    assert torch.equal(out, streams)
    first = nothing.clone()
    first[:, 2] = 1
    assert torch.equal(TABLE.hc_collapse(out, first, numerics=QUANTISED), streams[:, 2])


@few
@given(SEEDS, MODES)
def test_pooling_equal_gates_is_the_mean_and_a_dominant_gate_chooses(
    seed: int, numerics: Numerics
) -> None:
    kv = normal(seed, 6, 8, dtype=torch.float64)
    gate = torch.zeros(6, 8, dtype=torch.float64)
    mean = kv.reshape(3, 2, 8).mean(1)
    pooled = TABLE.compress_pool(kv, gate, 2, numerics=numerics)
    rounding = 1e-12 if pooled.dtype == torch.float64 else 2.0**-8
    assert bool(((pooled.double() - mean).abs() <= rounding * mean.abs() + 1e-7).all())
    gate[1::2] = 1000.0
    chosen = TABLE.compress_pool(kv, gate, 2, numerics=numerics)
    assert torch.equal(chosen.double(), kv[1::2].float().double())


@few
@given(SEEDS, FP64_MODES)
def test_chunks_of_rows_give_what_one_call_gives(seed: int, numerics: Numerics) -> None:
    streams, y = act(numerics, seed, 7, 4, 32), act(numerics, seed + 1, 7, 32)
    fn, base, scale = normal(seed, 24, 128) * 0.1, normal(seed, 24), torch.ones(3)
    q_weight, k_weight = normal(seed + 2, 4, 32), normal(seed + 3, 4, 32)

    def step(rows: slice) -> list[torch.Tensor]:
        pre, post, comb = TABLE.hc_mixes(
            streams[rows], fn, base, scale, 1e-20, 1e-6, 20, numerics=numerics
        )
        x = TABLE.hc_collapse(streams[rows], pre, numerics=numerics)
        out = TABLE.hc_expand(y[rows], streams[rows], post, comb, numerics=numerics)
        gated = TABLE.engram_gate(
            out, streams[rows], y[rows], q_weight, k_weight, 1e-20, numerics=numerics
        )
        swiglu = TABLE.swiglu(x, y[rows], 10.0, post[:, 0], numerics=numerics)
        return [
            x,
            out,
            gated,
            swiglu,
            TABLE.rms_norm(x, base.new_ones(32), 1e-20, numerics=numerics),
        ]

    whole = step(slice(0, 7))
    parts = [step(slice(first, first + 2)) for first in range(0, 7, 2)]
    for i, output in enumerate(whole):
        assert same(output, torch.cat([part[i] for part in parts]), numerics)


@few
@given(SEEDS, st.integers(1, 8))
def test_the_router_follows_a_permutation_of_the_experts(seed: int, top_k: int) -> None:
    x, weight = normal(seed, 5, 16, dtype=torch.float64), normal(seed + 1, 8, 16)
    bias = normal(seed + 2, 8)
    ids, weights = TABLE.router(x, weight, bias, top_k, 1.5, 1.0, True, numerics=EXACT)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    moved, same_weights = TABLE.router(
        x, weight[order], bias[order], top_k, 1.5, 1.0, True, numerics=EXACT
    )
    assert torch.equal(order[moved], ids)
    assert torch.allclose(weights, same_weights, rtol=1e-12)
    if top_k > 1:
        assert torch.allclose(weights.sum(1), torch.full((5,), 1.5, dtype=torch.float64))


@pytest.mark.parametrize("num_experts", [2, 5])
def test_equal_experts_are_taken_by_id(num_experts: int) -> None:
    x = normal(1, 3, 8, dtype=torch.float64)
    weight = normal(2, 1, 8).repeat(num_experts, 1)
    ids, _ = TABLE.router(x, weight, torch.zeros(num_experts), 2, 1.0, 1.0, True, numerics=EXACT)
    assert ids.tolist() == [[0, 1]] * 3


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset", "expanded"])
def test_layouts_do_not_change_a_result(layout: str) -> None:
    base = normal(3, 8, 64, dtype=torch.float64)
    flat = torch.empty(8 * 64 + 1, dtype=torch.float64)
    views = {
        "transposed": base.t().contiguous().t(),
        "strided": torch.repeat_interleave(base, 2, dim=1)[:, ::2],
        "offset": flat[1:].view(8, 64).copy_(base),
        "expanded": base[:1].expand(8, 64),
    }
    x = views[layout]
    plain = base[:1].repeat(8, 1) if layout == "expanded" else base
    angles = torch.ones(8, 8, dtype=torch.float64)
    weight = fp8_weight(4, 32, 64)
    for ours, expected in (
        (TABLE.rope(x, angles.cos(), angles.sin(), numerics=EXACT),
         TABLE.rope(plain, angles.cos(), angles.sin(), numerics=EXACT)),
        (TABLE.rms_norm(x, base[0], 1e-6, numerics=QUANTISED),
         TABLE.rms_norm(plain, base[0], 1e-6, numerics=QUANTISED)),
        (TABLE.linear_fp8(x, weight, "activation", numerics=QUANTISED),
         TABLE.linear_fp8(plain, weight, "activation", numerics=QUANTISED)),
        (TABLE.swiglu(x, x, 10.0, None, numerics=QUANTISED),
         TABLE.swiglu(plain, plain, 10.0, None, numerics=QUANTISED)),
        (TABLE.quantise_fp8(x, numerics=QUANTISED)[0],
         TABLE.quantise_fp8(plain, numerics=QUANTISED)[0]),
        (TABLE.quantise_fp4(x, 16, numerics=QUANTISED)[0],
         TABLE.quantise_fp4(plain, 16, numerics=QUANTISED)[0]),
    ):  # fmt: skip
        assert torch.equal(ours, expected)
