"""Right candidates with one mistake each, and the status that mistake must get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.core.errors import KernelError
from harness.core.numerics import FAST, Numerics
from harness.core.status import OpStatus
from harness.core.weights import QuantisedWeight
from references.op_table import TABLE
from tests.harness.run import right_candidates as right
from tests.harness.run.fake_runtime import allocated

__all__ = ["WRONG", "Wrong"]

BF16, F32 = torch.bfloat16, torch.float32
OUT = OpStatus.OUT_OF_TOLERANCE


@dataclass(frozen=True, slots=True)
class Wrong:
    """One mistake.

    Attributes:
        make: builds the candidate afresh, for those that keep state.
        changes: fields of the small case that make the mistake visible.
    """

    name: str
    op: str
    status: OpStatus
    make: Callable[[], Callable[..., Any]]
    changes: Mapping[str, Any] = field(default_factory=dict)


WRONG: list[Wrong] = []


def _wrong(op: str, status: OpStatus = OUT, **changes: Any) -> Callable[[Any], Any]:
    """Register a candidate under its function's name."""

    def register(candidate: Callable[..., Any]) -> Callable[..., Any]:
        WRONG.append(Wrong(candidate.__name__, op, status, lambda: candidate, changes))
        return candidate

    return register


def _reference(op: str) -> Callable[..., Any]:
    return TABLE.ops[op]


@_wrong("rms_norm")
def zero_row(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    y = right.rms_norm(x, weight, eps, numerics=numerics)
    y[2] = 0
    return y


@_wrong("rms_norm")
def last_row_repeats_the_one_before(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    y = right.rms_norm(x, weight, eps, numerics=numerics)
    y[-1] = y[-2]
    return y


@_wrong("rms_norm")
def mean_over_one_channel_too_few(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    wide = x.float()
    rstd = (wide[:, :-1].square().mean(1, keepdim=True) + eps).rsqrt()
    return (wide * rstd * weight.float()).to(x.dtype)


@_wrong("rms_norm")
def weight_rounded_in_twice(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    wide = x.float()
    rstd = (wide.square().mean(1, keepdim=True) + eps).rsqrt()
    return (wide * rstd).to(BF16) * weight


@_wrong("rms_norm", family="extremes")
def small_rows_wrong_beside_large_ones(
    x: Any, weight: Any, eps: float, *, numerics: Numerics
) -> Any:
    y = right.rms_norm(x, weight, eps, numerics=numerics)
    y[1] = (y[1].float() * 1.02).to(BF16)
    return y


@_wrong("hc_collapse", family="extremes")
def small_row_hidden_by_large_rows(streams: Any, pre: Any, *, numerics: Numerics) -> Any:
    y = _reference("hc_collapse")(streams, pre, numerics=numerics)
    y[1] = 0  # about 2^-20 beside rows of 2^20
    return y


@_wrong("rms_norm", OpStatus.INPUT_MODIFIED)
def normalises_in_place(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    y = right.rms_norm(x, weight, eps, numerics=numerics)
    x.copy_(y)
    return y


@_wrong("rms_norm", OpStatus.INPUT_MODIFIED, layout="offset")
def writes_beside_its_input(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    y = right.rms_norm(x, weight, eps, numerics=numerics)
    x.as_strided((1,), (1,), x.storage_offset() + x.shape[1]).zero_()
    return y


@_wrong("rms_norm", OpStatus.NON_FINITE)
def nan_in_one_place(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    y = right.rms_norm(x, weight, eps, numerics=numerics)
    y[3, 7] = float("nan")
    return y


@_wrong("rms_norm", OpStatus.NON_FINITE)
def infinity_for_the_largest(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    y = right.rms_norm(x, weight, eps, numerics=numerics)
    y.view(-1)[y.argmax()] = float("inf")
    return y


@_wrong("rms_norm", OpStatus.WRONG_DTYPE)
def float32_output(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    return right.rms_norm(x.float(), weight, eps, numerics=numerics)


@_wrong("rms_norm", OpStatus.WRONG_SHAPE)
def row_missing(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    return right.rms_norm(x, weight, eps, numerics=numerics)[:-1]


@_wrong("hc_mixes", OpStatus.WRONG_SHAPE)
def output_missing(*arguments: Any, numerics: Numerics) -> Any:
    return _reference("hc_mixes")(*arguments, numerics=numerics)[:2]


@_wrong("vocab_argmax", OpStatus.WRONG_SHAPE)
def list_in_place_of_a_tensor(logits: Any, *, numerics: Numerics) -> Any:
    return (None,)


@_wrong("rms_norm", OpStatus.UNWRITTEN)
def tail_never_written(x: Any, weight: Any, eps: float, *, numerics: Numerics) -> Any:
    y = allocated(*x.shape, dtype=x.dtype)
    y[:, :64] = right.rms_norm(x, weight, eps, numerics=numerics)[:, :64]
    return y


@_wrong("vocab_argmax", OpStatus.UNWRITTEN)
def ids_never_written(logits: Any, *, numerics: Numerics) -> Any:
    ids = allocated(logits.shape[0], dtype=torch.int64)
    ids[:-1] = right.vocab_argmax(logits, numerics=numerics)[:-1]
    return ids


@_wrong("index_scores", OpStatus.UNWRITTEN)
def sum_starts_from_scratch(q: Any, keys: Any, weights: Any, *, numerics: Numerics) -> Any:
    scores = right.index_scores(q, keys, weights, numerics=numerics)
    scratch = allocated(*scores.shape, dtype=F32).nan_to_num(1.0)  # no NaN shows the leak
    scores[0, 0] += scratch[0, 0] * 1e-20
    return scores


@_wrong("rms_norm", OpStatus.COMPILE_ERROR)
def does_not_compile(*arguments: Any, numerics: Numerics) -> Any:
    raise KernelError("COMPILE_ERROR", "tile of 256 partitions, the limit is 128")


@_wrong("rms_norm", OpStatus.RUN_ERROR)
def raises(*arguments: Any, numerics: Numerics) -> Any:
    raise IndexError("tile 3 of 3")


@_wrong("linear_fp8")
def bf16_accumulation(x: Any, weight: Any, output: str, *, numerics: Numerics) -> Any:
    values, scale = right.quantised_blocks(x, numerics.fp8_max)
    total = torch.zeros(x.shape[0], weight.out_features, dtype=BF16)
    dense = right.fp8_values(weight, numerics.fp8_max).split(32, 1)
    for block, w in zip((values * scale).unbind(1), dense, strict=True):
        total = (total.float() + block @ w.T).to(BF16)
    return total


@_wrong("linear_fp8")
def scale_of_the_neighbouring_block(x: Any, weight: Any, output: str, *, numerics: Numerics) -> Any:
    shifted = QuantisedWeight(weight.codes, weight.scale.roll(1, 1), weight.layout)
    return right.linear_fp8(x, shifted, output, numerics=numerics)


@_wrong("linear_fp8")
def activations_not_quantised(x: Any, weight: Any, output: str, *, numerics: Numerics) -> Any:
    return (x.float() @ right.fp8_values(weight, numerics.fp8_max).T).to(BF16)


@_wrong("linear_fp8")
def last_k_block_missed(x: Any, weight: Any, output: str, *, numerics: Numerics) -> Any:
    dense = right.fp8_values(weight, numerics.fp8_max)
    values, scale = right.quantised_blocks(x, numerics.fp8_max)
    return ((values * scale).flatten(-2)[:, :-32] @ dense[:, :-32].T).to(BF16)


@_wrong("linear_fp8", OpStatus.WRONG_DTYPE, scalars={"output": "accumulate"})
def partial_sum_rounded(x: Any, weight: Any, output: str, *, numerics: Numerics) -> Any:
    return right.linear_fp8(x, weight, "activation", numerics=numerics)


@_wrong("linear_fp4_grouped")
def swapped_nibbles(x: Any, weight: Any, sizes: Any, *, numerics: Numerics) -> Any:
    codes = (weight.codes << 4) | (weight.codes >> 4)
    swapped = QuantisedWeight(codes, weight.scale, weight.layout)
    return right.linear_fp4_grouped(x, swapped, sizes, numerics=numerics)


@_wrong("linear_fp4_grouped")
def group_border_off_by_one(x: Any, weight: Any, sizes: Any, *, numerics: Numerics) -> Any:
    sizes = sizes.clone()
    full, other = int(sizes.argmax()), int(sizes.argmin())
    sizes[full] -= 1
    sizes[other] += 1
    return right.linear_fp4_grouped(x, weight, sizes, numerics=numerics)


@_wrong("quantise_fp8", family="extremes")
def saturates_at_the_other_maximum(x: Any, *, numerics: Numerics) -> Any:
    other = Numerics("fast", "bfloat16", "float32", True, 448)
    return right.quantise_fp8(x, numerics=other)


@_wrong("quantise_fp4", family="ties")
def rounds_half_up(x: Any, block: int, *, numerics: Numerics) -> Any:
    above = (x.float() * 1.0001).to(F32)
    codes, _ = _reference("quantise_fp4")(above, block, numerics=numerics)
    return codes, _reference("quantise_fp4")(x, block, numerics=numerics)[1]


@_wrong("quantise_fp8", family="zero_block")
def floor_of_zero_blocks_forgotten(x: Any, *, numerics: Numerics) -> Any:
    codes, scale = right.quantise_fp8(x, numerics=numerics)
    zero = (x.unflatten(-1, (-1, 32)) == 0).all(-1)
    return codes, torch.where(zero, 127, scale).to(torch.uint8)


@_wrong("rope")
def rotates_halves_in_place_of_pairs(x: Any, cos: Any, sin: Any, *, numerics: Numerics) -> Any:
    out, half = x.float().clone(), cos.shape[1]
    a, b = out[..., -2 * half : -half].clone(), out[..., -half:].clone()
    c, s = cos[:, None], sin[:, None]
    out[..., -2 * half : -half], out[..., -half:] = a * c - b * s, a * s + b * c
    return out.to(x.dtype)


@_wrong("swiglu")
def gate_clamped_on_both_sides(
    gate: Any, up: Any, limit: float, weight: Any, *, numerics: Numerics
) -> Any:
    g = gate.clamp(-limit, limit)
    return right.swiglu(g, up, limit, weight, numerics=numerics)


@_wrong("swiglu")
def route_weight_forgotten(
    gate: Any, up: Any, limit: float, weight: Any, *, numerics: Numerics
) -> Any:
    return right.swiglu(gate, up, limit, None, numerics=numerics)


@_wrong("router")
def bias_in_the_weights(x: Any, weight: Any, bias: Any, *rest: Any, numerics: Numerics) -> Any:
    ids, weights = right.router(x, weight, bias, *rest, numerics=numerics)
    return ids, weights + bias[ids]


@_wrong("router", family="ties", scalars={"top_k": 5})
def larger_id_on_ties(x: Any, weight: Any, bias: Any, *rest: Any, numerics: Numerics) -> Any:
    flipped = (weight.flip(0), bias.flip(0))
    ids, weights = right.router(x, *flipped, *rest, numerics=numerics)
    return len(bias) - 1 - ids, weights


@_wrong("router")
def second_best_skipped(
    x: Any, weight: Any, bias: Any, top_k: int, *rest: Any, numerics: Any
) -> Any:
    ids, weights = right.router(x, weight, bias, top_k + 1, *rest, numerics=numerics)
    keep = [column for column in range(top_k + 1) if column != 1]
    return ids[:, keep], weights[:, keep]


@_wrong("router")
def an_expert_twice(x: Any, weight: Any, bias: Any, *rest: Any, numerics: Numerics) -> Any:
    ids, weights = right.router(x, weight, bias, *rest, numerics=numerics)
    ids[1, 0], weights[1, 0] = ids[1, 1], weights[1, 1]
    return ids, weights


@_wrong("sparse_attention")
def sink_forgotten(q: Any, kv: Any, ids: Any, sink: Any, scale: float, *, numerics: Any) -> Any:
    return right.sparse_attention(q, kv, ids, sink - 1e4, scale, numerics=numerics)


@_wrong("sparse_attention", seed=1)
def minus_one_reads_the_last_row(
    q: Any, kv: Any, ids: Any, sink: Any, scale: float, *, numerics: Any
) -> Any:
    wrapped = torch.where(ids < 0, kv.shape[0] - 1, ids)
    return right.sparse_attention(q, kv, wrapped, sink, scale, numerics=numerics)


@_wrong("sparse_attention")
def indices_off_by_one(q: Any, kv: Any, ids: Any, sink: Any, scale: float, *, numerics: Any) -> Any:
    next_row = torch.where(ids < 0, ids, (ids + 1) % kv.shape[0])
    return right.sparse_attention(q, kv, next_row, sink, scale, numerics=numerics)


@_wrong("sparse_attention", OpStatus.NON_FINITE, family="masked_rows")
def no_key_gives_nan(q: Any, kv: Any, ids: Any, sink: Any, scale: float, *, numerics: Any) -> Any:
    o = right.sparse_attention(q, kv, ids, sink, scale, numerics=numerics)
    o[(ids < 0).all(1)] = float("nan")
    return o


@_wrong("topk_positions")
def candidates_ignored(scores: Any, visible: Any, k: int, mask: Any, *, numerics: Any) -> Any:
    return right.topk_positions(scores, visible, k, None, numerics=numerics)


@_wrong("topk_positions", family="ties")
def later_position_on_ties(scores: Any, visible: Any, k: int, mask: Any, *, numerics: Any) -> Any:
    later = scores + torch.arange(scores.shape[1]) * 1e-3
    return right.topk_positions(later, visible, k, mask, numerics=numerics)


@_wrong("topk_positions", seed=2)
def one_entry_too_many_visible(
    scores: Any, visible: Any, k: int, mask: Any, *, numerics: Any
) -> Any:
    seen = (visible + 1).clamp(max=scores.shape[1])
    return right.topk_positions(scores, seen, k, None if mask is None else mask, numerics=numerics)


@_wrong("vocab_argmax", family="ties")
def highest_id_on_ties(logits: Any, *, numerics: Numerics) -> Any:
    return logits.shape[1] - 1 - logits.flip(1).argmax(1)


@_wrong("hc_expand")
def comb_transposed(y: Any, streams: Any, post: Any, comb: Any, *, numerics: Numerics) -> Any:
    return right.hc_expand(y, streams, post, comb.transpose(1, 2), numerics=numerics)


@_wrong("hc_mixes")
def one_sinkhorn_step_for_twenty(*arguments: Any, numerics: Numerics) -> Any:
    return _reference("hc_mixes")(*arguments[:-1], 1, numerics=numerics)


@_wrong("candidate_blocks")
def newest_block_not_forced(scores: Any, visible: Any, size: int, n: int, *, numerics: Any) -> Any:
    everything = torch.full_like(visible, scores.shape[1])
    mask = _reference("candidate_blocks")(scores, everything, size, n, numerics=numerics)
    return mask & (torch.arange(scores.shape[1]) < visible[:, None])


def _stale() -> Callable[..., Any]:
    kept: list[torch.Tensor] = []

    def returns_the_previous_output(
        x: Any, weight: Any, eps: float, *, numerics: Numerics = FAST
    ) -> Any:
        kept.append(right.rms_norm(x, weight, eps, numerics=numerics))
        return kept[-2] if len(kept) > 1 else torch.zeros_like(x)

    return returns_the_previous_output


def _drifting() -> Callable[..., Any]:
    calls: list[None] = []

    def changes_from_run_to_run(
        x: Any, weight: Any, eps: float, *, numerics: Numerics = FAST
    ) -> Any:
        calls.append(None)
        y = right.rms_norm(x, weight, eps, numerics=numerics)
        y[0, 0] += len(calls) * 2.0**-6
        return y

    return changes_from_run_to_run


WRONG.append(Wrong("returns_the_previous_output", "rms_norm", OpStatus.RUN_ERROR, _stale))
WRONG.append(Wrong("changes_from_run_to_run", "rms_norm", OpStatus.RUN_ERROR, _drifting))
