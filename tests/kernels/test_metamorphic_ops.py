"""Scale by powers of two, the order and number of keys, chunks, experts and ties, op by op."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.core.case import Case
from harness.run.inputs import build_inputs
from tests.kernels.test_metamorphic_rows import CORES, PROPERTY, SEEDS, Values, inputs, run

# Op -> arguments that are scaled together; every float output follows, exactly.
LINEAR_IN: dict[str, tuple[str, ...]] = {
    "rope": ("x",),
    "linear_fp8": ("x",),
    "linear_bf16": ("x",),
    "index_scores": ("head_weights",),
    "compress_pool": ("kv",),
    "hc_collapse": ("streams",),
    "hc_expand": ("y", "streams"),
    "output_projection": ("o",),
    "vocab_topk": ("logits",),
    "swiglu": ("route_weight",),
}
# Op -> arguments whose scale changes nothing.
BLIND_TO: dict[str, tuple[str, ...]] = {
    "topk_positions": ("scores",),
    "candidate_blocks": ("scores",),
    "vocab_argmax": ("logits",),
}


def scaled(values: Values, names: tuple[str, ...], power: int) -> Values:
    return {name: value * 2.0**power if name in names else value for name, value in values.items()}


@pytest.mark.parametrize("op", sorted(LINEAR_IN))
@PROPERTY
@given(rows=st.sampled_from([2, 6, 34]), seed=SEEDS, cores=CORES, power=st.integers(-6, 20))
def test_a_power_of_two_passes_through_exactly(
    op: str, rows: int, seed: int, cores: int, power: int
) -> None:
    values = inputs(op, rows, seed)
    plain = run(cores, op, values)
    moved = run(cores, op, scaled(values, LINEAR_IN[op], power))
    for found, wanted in zip(moved, plain, strict=True):
        factor = 2.0**power if found.is_floating_point() else 1
        assert torch.equal(found, wanted * factor)


@pytest.mark.parametrize("op", sorted(BLIND_TO))
@PROPERTY
@given(rows=st.sampled_from([2, 6, 34]), seed=SEEDS, cores=CORES, power=st.integers(-30, 30))
def test_a_selection_does_not_see_a_power_of_two(
    op: str, rows: int, seed: int, cores: int, power: int
) -> None:
    values = inputs(op, rows, seed)
    moved = run(cores, op, scaled(values, BLIND_TO[op], power))
    assert torch.equal(moved[0], run(cores, op, values)[0])


@PROPERTY
@given(rows=st.sampled_from([2, 34]), seed=SEEDS, cores=CORES, power=st.integers(-20, 20))
def test_coefficients_do_not_see_the_scale_of_the_streams(
    rows: int, seed: int, cores: int, power: int
) -> None:
    values = inputs("hc_mixes", rows, seed) | {"norm_eps": 0.0}
    plain = run(cores, "hc_mixes", values)
    for found, wanted in zip(
        run(cores, "hc_mixes", scaled(values, ("streams",), power)), plain, strict=True
    ):
        assert torch.equal(found, wanted)


def prefill(rows: int, seed: int) -> Values:
    case = Case("prefill_attention", {"T": rows, "H": 3, "D": 64, "N": 600}, seed=seed)
    return dict(build_inputs(case, fp8_max=240).values)


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    largest = wanted.double().abs().amax(-1, keepdim=True)
    assert bool(((found.double() - wanted.double()).abs() <= 2.0**-6 * largest).all())


@PROPERTY
@given(tokens=st.integers(1, 50), seed=SEEDS, cores=CORES)
def test_prefill_does_not_depend_on_the_order_of_rows(tokens: int, seed: int, cores: int) -> None:
    values = prefill(tokens, seed)
    plain = run(cores, "prefill_attention", values)[0]
    places = torch.randperm(600, generator=torch.Generator().manual_seed(seed))
    moved = {"rows": values["rows"][places], "allowed": values["allowed"][:, places]}
    assert_close(run(cores, "prefill_attention", values | moved)[0], plain)


@PROPERTY
@given(tokens=st.integers(1, 50), seed=SEEDS, cores=CORES, extra=st.sampled_from([1, 200, 700]))
def test_prefill_rows_that_are_closed_add_nothing(
    tokens: int, seed: int, cores: int, extra: int
) -> None:
    values = prefill(tokens, seed)
    plain = run(cores, "prefill_attention", values)[0]
    far = torch.full((extra, 64), 1e4).to(values["rows"].dtype)
    closed = torch.zeros(tokens, extra, dtype=torch.bool)
    for rows, allowed in (
        ((values["rows"], far), (values["allowed"], closed)),
        ((far, values["rows"]), (closed, values["allowed"])),
    ):
        more = {"rows": torch.cat(rows), "allowed": torch.cat(allowed, dim=1)}
        assert_close(run(cores, "prefill_attention", values | more)[0], plain)


@PROPERTY
@given(tokens=st.integers(2, 60), seed=SEEDS, cores=CORES)
def test_a_prompt_in_chunks_attends_like_the_whole(tokens: int, seed: int, cores: int) -> None:
    """The causal prefix: rows that came later are closed to it anyway."""
    values = prefill(tokens, seed)
    values["allowed"] &= torch.arange(600) < 600 - tokens + torch.arange(tokens).unsqueeze(1)
    plain = run(cores, "prefill_attention", values)[0]
    cut = 1 + seed % (tokens - 1)
    known = 600 - tokens + cut
    first = values | {
        "q": values["q"][:cut],
        "rows": values["rows"][:known],
        "allowed": values["allowed"][:cut, :known],
    }
    rest = values | {"q": values["q"][cut:], "allowed": values["allowed"][cut:]}
    parts = [run(cores, "prefill_attention", part)[0] for part in (first, rest)]
    assert_close(torch.cat(parts), plain)


@PROPERTY
@given(rows=st.integers(1, 20), seed=SEEDS, cores=CORES)
def test_a_key_scores_alike_wherever_it_lies_and_however_many_follow(
    rows: int, seed: int, cores: int
) -> None:
    values = inputs("index_scores", rows, seed)
    plain = run(cores, "index_scores", values)[0]
    places = torch.randperm(70, generator=torch.Generator().manual_seed(seed))
    moved = run(cores, "index_scores", values | {"keys": values["keys"][places]})[0]
    # Where a key lies decides in which order a product is summed on this CPU, no more.
    noise = 2.0**-20 * plain.abs().amax()
    assert bool(((moved - plain[:, places]).abs() <= noise).all())
    cut = 1 + seed % 69
    prefix = run(cores, "index_scores", values | {"keys": values["keys"][:cut]})[0]
    assert bool(((prefix - plain[:, :cut]).abs() <= noise).all())


@PROPERTY
@given(rows=st.sampled_from([4, 30, 140]), seed=SEEDS, cores=CORES)
def test_an_experts_rows_may_come_in_any_order_and_alone(rows: int, seed: int, cores: int) -> None:
    values = inputs("linear_fp4_grouped", rows, seed)
    plain = run(cores, "linear_fp4_grouped", values)[0]
    sizes = values["group_sizes"].tolist()
    generator = torch.Generator().manual_seed(seed)
    places, start = [], 0
    for size in sizes:
        places.append(start + torch.randperm(size, generator=generator))
        start += size
    order = torch.cat(places)
    moved = run(cores, "linear_fp4_grouped", values | {"x": values["x"][order]})[0]
    assert torch.equal(moved, plain[order])
    start = 0
    for expert, size in enumerate(sizes):
        alone = [size if e == expert else 0 for e in range(len(sizes))]
        part = {"x": values["x"][start : start + size], "group_sizes": torch.tensor(alone)}
        found = run(cores, "linear_fp4_grouped", values | part)[0]
        assert torch.equal(found, plain[start : start + size])
        start += size


@PROPERTY
@given(rows=st.sampled_from([4, 30]), seed=SEEDS, cores=CORES, power=st.integers(-6, 20))
def test_experts_let_a_power_of_two_pass(rows: int, seed: int, cores: int, power: int) -> None:
    values = inputs("linear_fp4_grouped", rows, seed)
    plain = run(cores, "linear_fp4_grouped", values)[0]
    moved = run(cores, "linear_fp4_grouped", scaled(values, ("x",), power))[0]
    assert torch.equal(moved, plain * 2.0**power)


@PROPERTY
@given(rows=st.integers(1, 20), seed=SEEDS, cores=CORES)
def test_of_equal_scores_the_first_are_taken_by_every_selection(
    rows: int, seed: int, cores: int
) -> None:
    scores = torch.randn(rows, 70, generator=torch.Generator().manual_seed(seed)).mul(1.5).round()
    values = inputs("topk_positions", rows, seed)
    values |= {"scores": scores, "candidates": None}
    found = run(cores, "topk_positions", values)[0]
    top_k = int(values["top_k"])
    for row, visible in enumerate(values["num_visible"].tolist()):
        ordered = sorted(range(visible), key=lambda i, at=row: (-float(scores[at, i]), i))
        best = sorted(ordered[:top_k])
        assert found[row].tolist() == best + [-1] * (top_k - len(best))
    logits = {"logits": scores, "top_k": 9}
    ranked, ids = run(cores, "vocab_topk", logits)
    for row in range(rows):
        ordered = sorted(range(70), key=lambda i, at=row: (-float(scores[at, i]), i))[:9]
        assert ids[row].tolist() == ordered
        assert ranked[row].tolist() == [float(scores[row, i]) for i in ordered]


@PROPERTY
@given(rows=st.integers(1, 20), seed=SEEDS, cores=CORES)
def test_of_twin_experts_the_router_takes_the_smaller_id(rows: int, seed: int, cores: int) -> None:
    values = inputs("router", rows, seed)
    weight, bias = values["weight"].clone(), values["bias"].clone()
    weight[1::2], bias[1::2] = weight[::2], bias[::2]
    ids, shares = run(cores, "router", values | {"weight": weight, "bias": bias, "top_k": 5})
    for row, chosen in zip(shares.tolist(), ids.tolist(), strict=True):
        assert len(set(chosen)) == 5
        for expert in chosen:
            assert expert % 2 == 0 or expert - 1 in chosen
        for i, expert in enumerate(chosen):
            if expert % 2 and expert - 1 in chosen:
                assert row[i] == row[chosen.index(expert - 1)]
