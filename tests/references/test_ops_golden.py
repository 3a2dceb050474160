"""Every op against a formulation of its own: numpy, float64, loops over rows, heads and entries."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from harness.core.numerics import EXACT, FAST, GOLDEN, QUANTISED, TRN2, Numerics
from references.op_table import TABLE
from tests.references.draws import fp4_weight, fp8_weight, normal, table_weight

F64 = npt.NDArray[np.float64]
ROUNDING = [EXACT, QUANTISED, FAST, GOLDEN]


def array(x: torch.Tensor) -> F64:
    return x.double().numpy()


def agrees(ours: torch.Tensor, golden: F64, numerics: Numerics) -> None:
    """Within one rounding of the output dtype and the noise of the sums."""
    dtype = getattr(torch, numerics.activation)
    assert ours.dtype == dtype
    assert ours.shape == golden.shape
    relative = {"bfloat16": 2.0**-8, "float64": 1e-12}[numerics.activation]
    noise = {"float32": 3e-6, "float64": 1e-12}[numerics.accumulate]
    scale = np.abs(golden).max(-1, keepdims=True)
    assert (np.abs(array(ours) - golden) <= relative * np.abs(golden) + noise * scale).all()


def act(numerics: Numerics, seed: int, *shape: int) -> torch.Tensor:
    return normal(seed, *shape, dtype=getattr(torch, numerics.activation))


def dense_fp8(codes: torch.Tensor, scale: torch.Tensor) -> F64:
    values = codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    factors = np.exp2(scale.numpy().astype(np.float64) - 127)
    spread = np.kron(factors, np.ones((32, 32)))
    return values * spread[: values.shape[0], : values.shape[1]]


def on_fp8_grid(x: torch.Tensor, limit: int) -> F64:
    values = x.float().numpy().reshape(x.shape[0], -1, 32)
    amax = np.maximum(np.abs(values).max(-1, keepdims=True), np.float32(1e-4))
    s = np.exp2(np.ceil(np.log2((amax * np.float32(1 / limit)).astype(np.float64))))
    grid = np.clip(values / s, -limit, limit).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    return (grid.astype(np.float64) * s).reshape(x.shape)


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_rms_norm(numerics: Numerics) -> None:
    x, weight = act(numerics, 1, 5, 48), normal(2, 48)
    golden = np.empty((5, 48))
    for row in range(5):
        square = math.fsum(value * value for value in array(x)[row]) / 48
        golden[row] = array(weight) * array(x)[row] / math.sqrt(square + 1e-20)
    agrees(TABLE.rms_norm(x, weight, 1e-20, numerics=numerics), golden, numerics)


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_rope_turns_adjacent_pairs_of_the_last_channels(numerics: Numerics) -> None:
    x = act(numerics, 3, 4, 3, 20)
    angles = np.arange(4)[:, None] * np.array([1.0, 0.3, 0.05])
    cos, sin = torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles))
    golden = array(x).copy()
    for row in range(4):
        for pair in range(3):
            a, b = 14 + 2 * pair, 15 + 2 * pair
            turn = np.array(
                [[math.cos(angles[row, pair]), -math.sin(angles[row, pair])],
                 [math.sin(angles[row, pair]), math.cos(angles[row, pair])]]
            )  # fmt: skip
            golden[row][:, [a, b]] = array(x)[row][:, [a, b]] @ turn.T
    agrees(TABLE.rope(x, cos, sin, numerics=numerics), golden, numerics)


@pytest.mark.parametrize("numerics", [*ROUNDING, TRN2], ids=lambda n: n.name)
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (40, 96)])
def test_linear_fp8(numerics: Numerics, rows: int, columns: int) -> None:
    x, weight = act(numerics, 4, 3, columns), fp8_weight(5, rows, columns)
    values = on_fp8_grid(x, numerics.fp8_max) if numerics.quantise else array(x)
    if numerics.fp8_max == 240:
        weight.codes &= 0xF7  # exponent 15 gone, so that no tile is rescaled
    golden = values @ dense_fp8(weight.codes, weight.scale).T
    agrees(TABLE.linear_fp8(x, weight, "activation", numerics=numerics), golden, numerics)
    sums = TABLE.linear_fp8(x, weight, "accumulate", numerics=numerics)
    assert sums.dtype == getattr(torch, numerics.accumulate)
    np.testing.assert_allclose(array(sums), golden, rtol=2e-5, atol=1e-5 * np.abs(golden).max())


def test_exact_linears_take_the_input_as_it_is_and_golden_ones_quantise_it() -> None:
    x, weight = normal(6, 2, 64, dtype=torch.float64), fp8_weight(7, 32, 64)
    exact = array(TABLE.linear_fp8(x, weight, "activation", numerics=EXACT))
    golden = array(TABLE.linear_fp8(x, weight, "activation", numerics=GOLDEN))
    dense = dense_fp8(weight.codes, weight.scale)
    np.testing.assert_allclose(exact, array(x) @ dense.T, rtol=1e-12)
    assert np.abs(golden - exact).max() > 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_linear_fp4_grouped(numerics: Numerics) -> None:
    x, weight = act(numerics, 8, 6, 64), fp4_weight(9, 4, 10, 64)
    nibbles = np.stack((weight.codes.numpy() & 15, weight.codes.numpy() >> 4), axis=-1)
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64).reshape(4, 10, 64)
    dense = values * np.repeat(np.exp2(weight.scale.numpy().astype(float) - 127), 32, axis=-1)
    inputs = on_fp8_grid(x, 448) if numerics.quantise else array(x)
    experts = [0, 0, 2, 2, 2, 3]
    golden = np.stack([dense[e] @ row for e, row in zip(experts, inputs, strict=True)])
    sizes = torch.tensor([2, 0, 3, 1])
    agrees(TABLE.linear_fp4_grouped(x, weight, sizes, numerics=numerics), golden, numerics)


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_linear_bf16_never_quantises(numerics: Numerics) -> None:
    x, weight = act(numerics, 10, 3, 40), normal(11, 7, 40)
    golden = array(x) @ array(weight).T
    agrees(TABLE.linear_bf16(x, weight, "activation", numerics=numerics), golden, numerics)


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_swiglu_limits_the_gate_from_above_only(numerics: Numerics) -> None:
    gate, up = act(numerics, 12, 4, 16) * 4, act(numerics, 13, 4, 16) * 4
    gate[0, 0], gate[0, 1], up[0, 0], up[0, 1] = 50, -50, 50, -50
    weight = normal(14, 4, dtype=torch.float64).abs()
    g, u = np.minimum(array(gate), 3), np.clip(array(up), -3, 3)
    golden = g / (1 + np.exp(-g)) * u
    agrees(TABLE.swiglu(gate, up, 3.0, None, numerics=numerics), golden, numerics)
    golden *= array(weight)[:, None]
    agrees(TABLE.swiglu(gate, up, 3.0, weight, numerics=numerics), golden, numerics)


@pytest.mark.parametrize("normalise", [True, False])
def test_router_selects_with_the_bias_and_weighs_without_it(normalise: bool) -> None:
    x, weight = normal(15, 9, 32, dtype=torch.float64), normal(16, 12, 32) * 0.2
    bias = normal(17, 12, dtype=torch.float32)
    ids, weights = TABLE.router(x, weight, bias, 3, 1.5, 0.7, normalise, numerics=EXACT)
    for row in range(9):
        logits = array(weight) @ array(x)[row] / 0.7
        scores = [math.sqrt(math.log1p(math.exp(z))) for z in logits]
        biased = [(-(s + b), e) for e, (s, b) in enumerate(zip(scores, bias.tolist(), strict=True))]
        expected = [e for _, e in sorted(biased)[:3]]
        assert ids[row].tolist() == expected
        total = sum(scores[e] for e in expected) + 1e-20 if normalise else 1.0
        np.testing.assert_allclose(weights[row], [1.5 * scores[e] / total for e in expected])


def test_router_of_one_expert_is_not_normalised() -> None:
    x, weight = normal(15, 2, 32, dtype=torch.float64), normal(16, 4, 32)
    _, one = TABLE.router(x, weight, torch.zeros(4), 1, 1.0, 1.0, True, numerics=EXACT)
    logits = array(x) @ array(weight).T
    np.testing.assert_allclose(one[:, 0], np.sqrt(np.log1p(np.exp(logits))).max(1))


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_sparse_attention(numerics: Numerics) -> None:
    q, kv, sink = act(numerics, 18, 4, 2, 16), act(numerics, 19, 9, 16), normal(20, 2)
    indices = torch.tensor([[0, 3, 8, 5], [2, -1, 7, -1], [-1, -1, -1, 4], [-1, -1, -1, -1]])
    golden = np.zeros((4, 2, 16))
    for row in range(4):
        keys = [array(kv)[i] for i in indices[row].tolist() if i >= 0]
        for head in range(2):
            scores = [0.25 * float(k @ array(q)[row, head]) for k in keys]
            weights = [math.exp(s) for s in scores]
            total = math.fsum(weights) + math.exp(float(sink[head]))
            for weight, key in zip(weights, keys, strict=True):
                golden[row, head] += weight / total * key
    ours = TABLE.sparse_attention(q, kv, indices, sink, 0.25, numerics=numerics)
    if numerics.activation == "bfloat16":  # P is rounded to bf16 for the weighted sum
        np.testing.assert_allclose(array(ours), golden, atol=2**-7)
    else:
        agrees(ours, golden, numerics)
    assert not array(ours)[3].any(), "no key gives 0"


def test_attention_rounds_p_for_the_sum_but_not_for_the_denominator() -> None:
    q, kv = torch.zeros(1, 1, 32).bfloat16(), torch.zeros(2, 32).bfloat16()
    q[0, 0, 0], kv[0, 0], kv[1, 0], kv[1, 1] = 1, 0, -0.3, 1
    sink = torch.tensor([-100.0])
    o = TABLE.sparse_attention(q, kv, torch.tensor([[0, 1]]), sink, 1.0, numerics=QUANTISED)
    p = math.exp(-float(kv[1, 0].abs()))
    coarse = float(torch.tensor(p).bfloat16())
    assert coarse != p
    assert o[0, 0, 1] == torch.tensor(coarse / (1 + p)).bfloat16()


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_index_scores(numerics: Numerics) -> None:
    q, keys = act(numerics, 21, 3, 4, 8), act(numerics, 22, 6, 8)
    weights = normal(23, 3, 4, dtype=torch.float64)
    golden = np.zeros((3, 6))
    for row in range(3):
        for entry in range(6):
            for head in range(4):
                dot = float(array(q)[row, head] @ array(keys)[entry])
                golden[row, entry] += float(weights[row, head]) * max(dot, 0.0)
    ours = TABLE.index_scores(q, keys, weights, numerics=numerics)
    assert ours.dtype == getattr(torch, numerics.accumulate)
    np.testing.assert_allclose(array(ours), golden, rtol=1e-5, atol=1e-5)


def brute_blocks(scores: F64, visible: int, size: int, count: int) -> list[bool]:
    blocks = range(-(-len(scores) // size))
    best: dict[int, float] = {}
    for block in blocks:
        seen = [scores[i] for i in range(block * size, min(visible, (block + 1) * size))]
        if seen:
            best[block] = max(seen)
    if visible:
        best[(visible - 1) // size] = math.inf
    kept = sorted(best, key=lambda block: (-best[block], block))[:count]
    return [i // size in kept for i in range(len(scores))]


def brute_topk(scores: F64, visible: int, count: int, allowed: list[bool]) -> list[int]:
    entries = [i for i in range(min(visible, len(scores))) if allowed[i]]
    best = sorted(sorted(entries, key=lambda i: (-scores[i], i))[:count])
    return best + [-1] * (min(count, len(scores)) - len(best))


@pytest.mark.parametrize("seed", range(8))
def test_candidate_blocks_and_topk_equal_brute_force_also_on_ties(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(1, 40))
    scores = generator.integers(-2, 3, size=(12, n)).astype(np.float64)  # ties everywhere
    visible = generator.integers(0, n + 1, size=12)
    size, count = int(generator.integers(1, 6)), int(generator.integers(1, 5))
    top_k = int(generator.integers(1, 12))
    s, v = torch.from_numpy(scores), torch.from_numpy(visible)
    mask = TABLE.candidate_blocks(s, v, size, count, numerics=EXACT)
    plain = TABLE.topk_positions(s, v, top_k, None, numerics=EXACT)
    restricted = TABLE.topk_positions(s, v, top_k, mask, numerics=EXACT)
    for row in range(12):
        blocks = brute_blocks(scores[row], int(visible[row]), size, count)
        assert mask[row].tolist() == blocks
        everywhere = [True] * n
        assert plain[row].tolist() == brute_topk(scores[row], visible[row], top_k, everywhere)
        assert restricted[row].tolist() == brute_topk(scores[row], visible[row], top_k, blocks)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_compress_pool(ratio: int) -> None:
    kv, gate = normal(24, 8, 5, dtype=torch.float64), normal(25, 8, 5, dtype=torch.float64) * 3
    golden = np.zeros((8 // ratio, 5))
    for group in range(8 // ratio):
        for channel in range(5):
            members = range(group * ratio, (group + 1) * ratio)
            shares = [math.exp(float(gate[t, channel])) for t in members]
            golden[group, channel] = math.fsum(
                share * float(kv[t, channel]) for share, t in zip(shares, members, strict=True)
            ) / math.fsum(shares)
    np.testing.assert_allclose(TABLE.compress_pool(kv, gate, ratio, numerics=EXACT), golden)
    pooled = TABLE.compress_pool(kv, gate, ratio, numerics=QUANTISED)
    np.testing.assert_allclose(array(pooled), golden, rtol=2**-8)


def mixes_by_hand(x: F64, fn: F64, base: F64, scale: F64, eps: float, iterations: int) -> F64:
    """pre, post and comb of one row, flat, by scalar loops."""
    m = x.shape[0]
    flat = x.reshape(-1)
    rms = math.sqrt(math.fsum(v * v for v in flat) / len(flat) + 1e-20)
    z = [math.fsum(a * b for a, b in zip(row, flat, strict=True)) / rms for row in fn]
    z = [v * scale[0 if i < m else 1 if i < 2 * m else 2] + base[i] for i, v in enumerate(z)]
    pre = [1 / (1 + math.exp(-v)) + eps for v in z[:m]]
    post = [2 / (1 + math.exp(-v)) for v in z[m : 2 * m]]
    c = [[math.exp(z[2 * m + i * m + j]) for j in range(m)] for i in range(m)]
    c = [[v / sum(row) + eps for v in row] for row in c]
    for step in range(2 * iterations - 1):
        if step % 2 == 0:
            sums = [sum(c[i][j] for i in range(m)) + eps for j in range(m)]
            c = [[c[i][j] / sums[j] for j in range(m)] for i in range(m)]
        else:
            c = [[v / (sum(row) + eps) for v in row] for row in c]
    return np.array(pre + post + [v for row in c for v in row])


@pytest.mark.parametrize("iterations", [1, 3, 20])
@pytest.mark.parametrize("m", [2, 4])
def test_hc_mixes(m: int, iterations: int) -> None:
    streams = normal(26, 3, m, 16, dtype=torch.float64)
    size = (2 + m) * m
    fn, base = normal(27, size, m * 16).float() * 0.3, normal(28, size).float()
    scale = torch.tensor([0.5, 1.5, 2.5])
    ours = TABLE.hc_mixes(streams, fn, base, scale, 1e-20, 1e-6, iterations, numerics=EXACT)
    flat = torch.cat([part.reshape(3, -1) for part in ours], dim=1)
    for row in range(3):
        golden = mixes_by_hand(
            array(streams)[row], array(fn), array(base), array(scale), 1e-6, iterations
        )
        np.testing.assert_allclose(array(flat)[row], golden, rtol=1e-11)


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_hc_collapse_and_expand(numerics: Numerics) -> None:
    streams, y = act(numerics, 29, 3, 4, 8), act(numerics, 30, 3, 8)
    pre, post = normal(31, 3, 4, dtype=torch.float64), normal(32, 3, 4, dtype=torch.float64)
    comb = normal(33, 3, 4, 4, dtype=torch.float64)
    x, out = np.zeros((3, 8)), np.zeros((3, 4, 8))
    for row in range(3):
        for source in range(4):
            x[row] += float(pre[row, source]) * array(streams)[row, source]
        for destination in range(4):
            out[row, destination] = float(post[row, destination]) * array(y)[row]
            for source in range(4):
                weight = float(comb[row, source, destination])
                out[row, destination] += weight * array(streams)[row, source]
    agrees(TABLE.hc_collapse(streams, pre, numerics=numerics), x, numerics)
    agrees(TABLE.hc_expand(y, streams, post, comb, numerics=numerics), out, numerics)


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
def test_engram_lookup_is_exact_in_every_numerics(numerics: Numerics) -> None:
    table = table_weight(34, 20, 64)
    ids = torch.tensor([[3, 19, 3], [0, 7, 11]])
    values = table.codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    dense = values * np.repeat(np.exp2(table.scale.numpy().astype(float) - 127), 32, axis=1)
    ours = TABLE.engram_lookup(table, ids, numerics=numerics)
    assert ours.dtype == getattr(torch, numerics.activation)
    np.testing.assert_array_equal(array(ours), dense[ids.numpy()].reshape(2, -1))


def test_engram_lookup_on_the_240_grid_rescales_only_what_exceeds_it() -> None:
    table = table_weight(34, 20, 64)
    table.codes[:10] &= 0x8F
    ids = torch.arange(20).unsqueeze(1)
    ocp = array(TABLE.engram_lookup(table, ids, numerics=QUANTISED))
    trn2 = array(TABLE.engram_lookup(table, ids, numerics=TRN2))
    np.testing.assert_array_equal(trn2[:10], ocp[:10])
    assert (trn2[10:] != ocp[10:]).any()
    assert np.abs(trn2 - ocp).max() <= 2.0**-10


@pytest.mark.parametrize("numerics", ROUNDING, ids=lambda n: n.name)
@pytest.mark.parametrize("gain", [1.0, 1e-8])
def test_engram_gate(numerics: Numerics, gain: float) -> None:
    x, key, value = (
        act(numerics, 35, 3, 2, 16),
        act(numerics, 36, 3, 2, 16),
        act(numerics, 37, 3, 16),
    )
    q_weight, k_weight = normal(38, 2, 16) * gain, normal(39, 2, 16)
    golden = np.zeros((3, 2, 16))
    for row in range(3):
        for j in range(2):
            a, b = array(x)[row, j], array(key)[row, j]
            query = a / math.sqrt((a * a).mean() + 1e-20) * array(q_weight)[j]
            dot = float(query @ (b / math.sqrt((b * b).mean() + 1e-20) * array(k_weight)[j])) / 4
            root = math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)
            golden[row, j] = a + array(value)[row] / (1 + math.exp(-root))
    ours = TABLE.engram_gate(x, key, value, q_weight, k_weight, 1e-20, numerics=numerics)
    agrees(ours, golden, numerics)


@pytest.mark.parametrize("numerics", [EXACT, QUANTISED, FAST, GOLDEN], ids=lambda n: n.name)
@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (4, 4), (2, 1)])
def test_output_projection(numerics: Numerics, heads: int, groups: int) -> None:
    width = heads // groups * 32
    o, weight = act(numerics, 40, 3, heads, 32), fp8_weight(41, groups * 32, width)
    dense = dense_fp8(weight.codes, weight.scale)
    golden = np.zeros((3, groups, 32))
    for row in range(3):
        for group in range(groups):
            members = array(o)[row, group * heads // groups : (group + 1) * heads // groups]
            golden[row, group] = dense[group * 32 : (group + 1) * 32] @ members.reshape(-1)
    ours = TABLE.output_projection(o, weight, groups, numerics=numerics)
    assert ours.dtype == getattr(torch, numerics.accumulate)
    np.testing.assert_allclose(array(ours), golden, rtol=1e-4, atol=1e-5 * np.abs(golden).max())


def test_vocabulary_choices_take_the_lowest_id_of_equals() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0, 5.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert TABLE.vocab_argmax(logits, numerics=FAST).tolist() == [1, 0]
    values, ids = TABLE.vocab_topk(logits, 4, numerics=FAST)
    assert ids.tolist() == [[1, 2, 4, 3], [0, 1, 2, 3]]
    assert values.tolist() == [[5.0, 5.0, 5.0, 2.0], [0.0] * 4]


def test_vocab_topk_equals_sorting_also_with_masked_words() -> None:
    generator = np.random.default_rng(42)
    logits = generator.integers(-3, 4, size=(20, 50)).astype(np.float64)
    logits[3, 2:] = -np.inf
    values, ids = TABLE.vocab_topk(torch.from_numpy(logits), 7, numerics=EXACT)
    for row in range(20):
        order = sorted(range(50), key=lambda i: (-logits[row, i], i))[:7]
        assert ids[row].tolist() == order
        assert values[row].tolist() == logits[row, order].tolist()
