"""What must not change a kernel's answer: padding, order, splits, powers of two, ties.

No golden is used here: each property holds for any right kernel, whatever its reference says.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from kernels.launch import backend_selected, lnc_selected
from kernels.op_table import TABLE

NUMERICS = Numerics("fast", "bfloat16", "float32", quantise=True, fp8_max=240)
PROPERTY = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
ROWS = st.integers(2, 140)
SEEDS = st.integers(0, 2**16)
CORES = st.sampled_from([1, 2])


def run(cores: int, op: str, *arguments: object) -> torch.Tensor:
    """The kernel's only, or first, output on one or two cores."""
    with backend_selected("interpret"), lnc_selected(cores):
        output = TABLE.ops[op](*arguments, numerics=NUMERICS)
    first: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return first


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def activations(seed: int, *shape: int) -> torch.Tensor:
    return normal(seed, *shape).to(torch.bfloat16)


def order(seed: int, length: int) -> torch.Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def assert_same_rounding(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal, but for bf16 rounding borders that another order of fp32 sums may cross."""
    assert found.shape == wanted.shape
    a, b = found.double(), wanted.double()
    largest = b.abs().amax(-1, keepdim=True)
    assert bool(((a - b).abs() <= 2.0**-7 * b.abs() + 2.0**-14 * largest).all())
    assert float((a != b).double().mean()) <= 0.05 + 1 / a.numel()


def fp8_weight(seed: int, N: int, K: int) -> QuantisedWeight:
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 0x78, (N, K), generator=source, dtype=torch.uint8)
    codes |= torch.randint(0, 2, (N, K), generator=source, dtype=torch.uint8) << 7
    scale = torch.randint(112, 120, (-(-N // 32), -(-K // 32)), generator=source)
    return QuantisedWeight(codes, scale.to(torch.uint8), "fp8_block")


def by_row(op: str, seed: int, rows: int) -> tuple[tuple[torch.Tensor, ...], tuple[object, ...]]:
    """(arguments with a row a token, those all rows share) of ops that work row by row."""
    match op:
        case "rms_norm":
            return (activations(seed, rows, 256),), (activations(seed + 1, 256), 1e-20)
        case "swiglu":
            pair = (activations(seed, rows, 64) * 6, activations(seed + 1, rows, 64) * 6)
            return pair, (10.0, None)
        case "linear_fp8":
            return (activations(seed, rows, 128),), (fp8_weight(seed + 1, 64, 128), "activation")
        case "linear_bf16":
            return (activations(seed, rows, 160),), (activations(seed + 1, 48, 160), "activation")
        case "vocab_argmax":
            return (normal(seed, rows, 96),), ()
        case "hc_collapse":
            return (activations(seed, rows, 4, 64), normal(seed + 1, rows, 4).abs()), ()
    raise AssertionError(op)


ROW_OPS = ("rms_norm", "swiglu", "linear_fp8", "linear_bf16", "vocab_argmax", "hc_collapse")


@pytest.mark.parametrize("op", ROW_OPS)
@PROPERTY
@given(rows=ROWS, seed=SEEDS, cores=CORES)
def test_permuted_rows_give_permuted_answers(op: str, rows: int, seed: int, cores: int) -> None:
    own, shared = by_row(op, seed, rows)
    places = order(seed, rows)
    moved = run(cores, op, *(tensor[places] for tensor in own), *shared)
    assert_same_rounding(moved, run(cores, op, *own, *shared)[places])


@pytest.mark.parametrize("op", ROW_OPS)
@PROPERTY
@given(rows=ROWS, seed=SEEDS, cores=CORES, share=st.floats(0.01, 0.99))
def test_a_split_batch_gives_the_parts_of_the_whole(
    op: str, rows: int, seed: int, cores: int, share: float
) -> None:
    own, shared = by_row(op, seed, rows)
    cut = min(rows - 1, max(1, int(rows * share)))
    parts = [
        run(cores, op, *(tensor[place].contiguous() for tensor in own), *shared)
        for place in (slice(0, cut), slice(cut, rows))
    ]
    assert_same_rounding(torch.cat(parts), run(cores, op, *own, *shared))


@pytest.mark.parametrize("op", [op for op in ROW_OPS if op != "vocab_argmax"])
@PROPERTY
@given(
    rows=ROWS,
    seed=SEEDS,
    cores=CORES,
    padding=st.integers(1, 130),
    fill=st.sampled_from([0.0, 1e4, math.inf]),
)
def test_padding_rows_reach_no_other_row(
    op: str, rows: int, seed: int, cores: int, padding: int, fill: float
) -> None:
    own, shared = by_row(op, seed, rows)
    padded = [torch.cat((t, torch.full((padding, *t.shape[1:]), fill).to(t.dtype))) for t in own]
    if op.startswith("linear") and math.isinf(fill):
        padded = [t.nan_to_num(posinf=3e38) for t in padded]
    assert_same_rounding(run(cores, op, *padded, *shared)[:rows], run(cores, op, *own, *shared))


@PROPERTY
@given(rows=st.integers(1, 20), seed=SEEDS, cores=CORES, power=st.integers(-20, 20))
def test_powers_of_two_pass_through(rows: int, seed: int, cores: int, power: int) -> None:
    factor = 2.0**power
    x, weight = activations(seed, rows, 96), activations(seed + 1, 40, 96)
    plain = run(cores, "linear_bf16", x, weight, "activation")
    assert torch.equal(run(cores, "linear_bf16", x * factor, weight, "activation"), plain * factor)
    normed = run(cores, "rms_norm", x, weight[0], 0.0)
    assert torch.equal(run(cores, "rms_norm", x * factor, weight[0], 0.0), normed)
    scores = normal(seed, rows, 30)
    visible = torch.full((rows,), 30)
    best = run(cores, "topk_positions", scores, visible, 7, None)
    assert torch.equal(run(cores, "topk_positions", scores * factor, visible, 7, None), best)


@PROPERTY
@given(rows=st.integers(1, 12), seed=SEEDS, cores=CORES, power=st.integers(-8, 30))
def test_a_power_of_two_moves_the_scales_of_a_quantiser_and_no_code(
    rows: int, seed: int, cores: int, power: int
) -> None:
    x = activations(seed, rows, 64) + 1
    with backend_selected("interpret"), lnc_selected(cores):
        for op, extra in (("quantise_fp8", ()), ("quantise_fp4", (32,))):
            codes, scale = TABLE.ops[op](x, *extra, numerics=NUMERICS)
            moved, other = TABLE.ops[op](x * 2.0**power, *extra, numerics=NUMERICS)
            assert torch.equal(moved, codes)
            assert torch.equal(other.int(), scale.int() + power)


@PROPERTY
@given(rows=st.integers(1, 20), entries=st.integers(9, 200), seed=SEEDS, cores=CORES)
def test_what_is_not_visible_yet_changes_no_selection(
    rows: int, entries: int, seed: int, cores: int
) -> None:
    scores = normal(seed, rows, entries)
    visible = torch.randint(1, entries, (rows,), generator=torch.Generator().manual_seed(seed))
    hidden = torch.arange(entries) >= visible[:, None]
    for garbage in (math.nan, math.inf, -math.inf, 3e38):
        later = scores.masked_fill(hidden, garbage)
        for op, extra in (("topk_positions", (5, None)), ("candidate_blocks", (8, 2))):
            assert torch.equal(
                run(cores, op, later, visible, *extra), run(cores, op, scores, visible, *extra)
            )


def attention_inputs(
    seed: int, tokens: int, heads: int, rows: int, entries: int
) -> tuple[torch.Tensor, ...]:
    indices = torch.stack([order(seed + t, rows)[:entries] for t in range(tokens)])
    return (
        activations(seed, tokens, heads, 64),
        activations(seed + 1, rows, 64),
        indices,
        normal(seed + 2, heads),
    )


@PROPERTY
@given(
    tokens=st.integers(1, 5),
    heads=st.sampled_from([1, 3, 8, 16]),
    entries=st.integers(1, 150),
    seed=SEEDS,
    cores=CORES,
)
def test_attention_does_not_depend_on_the_order_of_keys_or_on_absent_ones(
    tokens: int, heads: int, entries: int, seed: int, cores: int
) -> None:
    q, kv, indices, sink = attention_inputs(seed, tokens, heads, 200, entries)
    plain = run(cores, "sparse_attention", q, kv, indices, sink, 0.125).double()
    shuffled = indices[:, order(seed, entries)]
    absent = torch.full((tokens, 37), -1)
    spread = torch.cat((absent[:, :20], indices, absent[:, 20:]), dim=1)
    far = torch.cat((kv, torch.full((9, 64), 1e30).to(kv.dtype)))  # cache rows nobody selected
    for changed in ((kv, shuffled), (kv, spread), (far, indices)):
        other = run(cores, "sparse_attention", q, *changed, sink, 0.125).double()
        largest = plain.abs().amax(-1, keepdim=True)
        assert bool(((other - plain).abs() <= 2.0**-6 * largest).all())


@PROPERTY
@given(tokens=st.integers(2, 6), entries=st.integers(1, 60), seed=SEEDS, cores=CORES)
def test_a_longer_cache_and_later_tokens_leave_a_causal_prefix_alone(
    tokens: int, entries: int, seed: int, cores: int
) -> None:
    q, kv, indices, sink = attention_inputs(seed, tokens, 4, 80, entries)
    whole = run(cores, "sparse_attention", q, kv, indices, sink, 0.2).double()
    prefix = run(cores, "sparse_attention", q[:1], kv[:80], indices[:1], sink, 0.2).double()
    assert bool(((whole[:1] - prefix).abs() <= 2.0**-6 * whole[:1].abs().amax()).all())


@PROPERTY
@given(groups=st.integers(2, 150), seed=SEEDS, cores=CORES, ratio=st.sampled_from([1, 2, 4]))
def test_a_prompt_in_chunks_is_pooled_like_the_whole(
    groups: int, seed: int, cores: int, ratio: int
) -> None:
    kv, gate = normal(seed, groups * ratio, 96), normal(seed + 1, groups * ratio, 96)
    cut = (1 + seed % (groups - 1)) * ratio
    parts = [
        run(cores, "compress_pool", kv[place], gate[place], ratio)
        for place in (slice(0, cut), slice(cut, None))
    ]
    assert torch.equal(torch.cat(parts), run(cores, "compress_pool", kv, gate, ratio))


@PROPERTY
@given(rows=st.integers(1, 40), width=st.integers(2, 300), seed=SEEDS, cores=CORES)
def test_of_equal_values_the_lowest_id_wins(rows: int, width: int, seed: int, cores: int) -> None:
    logits = normal(seed, rows, width).mul(2).round()
    ids = run(cores, "vocab_argmax", logits)
    first = [row.index(max(row)) for row in logits.tolist()]
    assert ids.tolist() == first
    # A copy of the vocabulary behind itself brings no new winner.
    assert run(cores, "vocab_argmax", logits.repeat(1, 2)).tolist() == first


@PROPERTY
@given(heads=st.sampled_from([64, 16, 8, 1]), seed=SEEDS, cores=CORES)
def test_ranks_of_any_number_of_heads_reassemble_to_all_64(
    heads: int, seed: int, cores: int
) -> None:
    q, kv, indices, sink = attention_inputs(seed, 2, 64, 40, 24)
    whole = run(cores, "sparse_attention", q, kv, indices, sink, 0.125).double()
    parts = [
        run(
            cores,
            "sparse_attention",
            q[:, at : at + heads],
            kv,
            indices,
            sink[at : at + heads],
            0.125,
        )
        for at in range(0, 64, heads)
    ]
    joined = torch.cat(parts, dim=1).double()
    assert bool(((joined - whole).abs() <= 2.0**-6 * whole.abs().amax(-1, keepdim=True)).all())


@PROPERTY
@given(ranks=st.sampled_from([1, 4, 8, 64]), seed=SEEDS, cores=CORES)
def test_sharded_columns_and_inputs_of_a_linear_reassemble(
    ranks: int, seed: int, cores: int
) -> None:
    x, weight = activations(seed, 3, 2048), fp8_weight(seed, 2048, 2048)
    width = 2048 // ranks
    whole = run(cores, "linear_fp8", x, weight, "accumulate")
    at = slice(width, 2 * width) if ranks > 1 else slice(0, width)
    tiles = slice(at.start // 32, at.stop // 32)
    columns = QuantisedWeight(weight.codes[at], weight.scale[tiles], "fp8_block")
    part = run(cores, "linear_fp8", x, columns, "accumulate")
    largest = whole.abs().amax()
    assert bool(((part - whole[:, at]).abs() <= 2.0**-18 * largest).all())
    total = torch.zeros_like(whole)
    for start in range(0, 2048, width):
        place, tile = slice(start, start + width), slice(start // 32, (start + width) // 32)
        rows = QuantisedWeight(
            weight.codes[:, place].contiguous(), weight.scale[:, tile].contiguous(), "fp8_block"
        )
        total += run(cores, "linear_fp8", x[:, place].contiguous(), rows, "accumulate")
    assert bool(((total - whole).abs() <= 2.0**-18 * largest).all())
