"""The signature sheet: every op of the model, its arguments, outputs and promises.

References, kernels, the engine's op table and the suites are all checked against this sheet, so
it is the one place where an op's face is written down. Shapes use this legend:

    T tokens (rows of a step)    d hidden size           H attention heads on this rank
    D head dim                   R rope dim              N, K output and input features
    E experts on this rank       I expert width          V vocabulary rows on this rank
    n cache entries              M selected entries      m residual streams (hc_mult)
    N of prefill_attention: rows that a block of tokens shares
    G groups of wo_a             L rank of o-LoRA        h index heads   x index head dim
    F Engram rows a token        W Engram row width

Activations have dtype `numerics.activation`, "acc" means `numerics.accumulate`. Every op takes
`numerics` as its last keyword. Source of the semantics: model.md §2.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.errors import UsageError
from harness.core.suggest import near_names

__all__ = ["OP_SHEET", "OpSpec", "Value", "op_named"]


@dataclass(frozen=True, slots=True)
class Value:
    """One argument or output. `kind`: act, acc, weight (bf16/fp32 parameter), quantised
    (QuantisedWeight), codes (uint8), ids (int64), mask (bool) or scalar."""

    name: str
    kind: str
    shape: str = ""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op.

    Attributes:
        name: function name in the op table and in its module.
        stem: file stem, shared by reference, kernel, suite and test.
        exact: outputs are compared bit for bit (ids, codes, casts).
        lowest_index_on_ties: the op promises the lowest index, not just a valid set.
    """

    name: str
    stem: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    summary: str
    exact: bool = False
    lowest_index_on_ties: bool = False

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the positional parameters, `numerics` excluded."""
        return tuple(value.name for value in self.inputs)


def _act(name: str, shape: str) -> Value:
    return Value(name, "act", shape)


def _acc(name: str, shape: str) -> Value:
    return Value(name, "acc", shape)


def _weight(name: str, shape: str) -> Value:
    return Value(name, "weight", shape)


def _quantised(name: str, shape: str) -> Value:
    return Value(name, "quantised", shape)


def _codes(name: str, shape: str) -> Value:
    return Value(name, "codes", shape)


def _ids(name: str, shape: str) -> Value:
    return Value(name, "ids", shape)


def _mask(name: str, shape: str) -> Value:
    return Value(name, "mask", shape)


def _scalar(name: str) -> Value:
    return Value(name, "scalar")


_SPECS = (
    OpSpec(
        "rms_norm",
        "rms_norm",
        (_act("x", "T d"), _weight("weight", "d"), _scalar("eps")),
        (_act("y", "T d"),),
        "y = weight * x * rsqrt(mean(x^2) + eps), one rounding",
    ),
    OpSpec(
        "rope",
        "rope",
        (_act("x", "T ... D"), _acc("cos", "T R/2"), _acc("sin", "T R/2")),
        (_act("y", "T ... D"),),
        "rotate adjacent pairs of the last R channels; the inverse takes -sin",
    ),
    OpSpec(
        "quantise_fp8",
        "quantise_fp8",
        (_act("x", "T K"),),
        (_codes("codes", "T K"), _codes("scale", "T K/32")),
        "per 32 channels: ue8m0 scale from max(amax, 1e-4) / fp8_max, e4m3 codes",
        exact=True,
    ),
    OpSpec(
        "dequantise_fp8",
        "quantise_fp8",
        (_codes("codes", "T K"), _codes("scale", "T K/32")),
        (_act("y", "T K"),),
        "codes times scale, rounded to the activation dtype",
        exact=True,
    ),
    OpSpec(
        "quantise_fp4",
        "quantise_fp4",
        (_act("x", "T K"), _scalar("block")),
        (_codes("codes", "T K/2"), _codes("scale", "T K/block")),
        "block 32: ue8m0 scales (index keys, queries); block 16: e4m3 scales (compressed KV)",
        exact=True,
    ),
    OpSpec(
        "dequantise_fp4",
        "quantise_fp4",
        (_codes("codes", "T K/2"), _codes("scale", "T K/block"), _scalar("block")),
        (_act("y", "T K"),),
        "codes times scale, rounded to the activation dtype",
        exact=True,
    ),
    OpSpec(
        "linear_fp8",
        "linear_fp8",
        (_act("x", "T K"), _quantised("weight", "N K"), _scalar("output")),
        (_act("y", "T N"),),
        "x (quantised per 32 where numerics.quantise) times weight^T; output: 'activation' "
        "rounds, 'accumulate' leaves a partial sum unrounded",
    ),
    OpSpec(
        "linear_fp4_grouped",
        "linear_fp4_grouped",
        (_act("x", "T K"), _quantised("weight", "E N K"), _ids("group_sizes", "E")),
        (_act("y", "T N"),),
        "rows sorted by expert; group_sizes[e] consecutive rows meet expert e; zero rows allowed",
    ),
    OpSpec(
        "linear_bf16",
        "linear_bf16",
        (_act("x", "T K"), _weight("weight", "N K"), _scalar("output")),
        (_act("y", "T N"),),
        "plain x times weight^T without activation quantisation",
    ),
    OpSpec(
        "swiglu",
        "swiglu",
        (
            _act("gate", "T I"),
            _act("up", "T I"),
            _scalar("limit"),
            _acc("route_weight", "T or None"),
        ),
        (_act("y", "T I"),),
        "route_weight * silu(min(gate, limit)) * clamp(up, -limit, limit)",
    ),
    OpSpec(
        "router",
        "router",
        (
            _act("x", "T d"),
            _weight("weight", "E d"),
            _weight("bias", "E"),
            _scalar("top_k"),
            _scalar("route_scale"),
            _scalar("gate_temp"),
            _scalar("normalise"),
        ),
        (_ids("expert_ids", "T top_k"), _acc("expert_weights", "T top_k")),
        "sqrt(softplus) scores; the bias steers selection only; ties go to the smaller id",
        lowest_index_on_ties=True,
    ),
    OpSpec(
        "sparse_attention",
        "sparse_attention",
        (
            _act("q", "T H D"),
            _act("kv", "n D"),
            _ids("indices", "T M"),
            _weight("sink", "H"),
            _scalar("scale"),
        ),
        (_act("o", "T H D"),),
        "softmax over the selected rows (-1: none) with a denominator-only sink; no key gives 0",
    ),
    OpSpec(
        "prefill_attention",
        "prefill_attention",
        (
            _act("q", "T H D"),
            _act("rows", "N D"),
            _mask("allowed", "T N"),
            _weight("sink", "H"),
            _scalar("scale"),
        ),
        (_act("o", "T H D"),),
        "sparse_attention of tokens that share their rows: softmax over the rows each is allowed",
    ),
    OpSpec(
        "index_scores",
        "index_scores",
        (_act("q", "T h x"), _act("keys", "n x"), _acc("head_weights", "T h")),
        (_acc("scores", "T n"),),
        "sum over heads of weight * relu(q . k)",
    ),
    OpSpec(
        "candidate_blocks",
        "candidate_blocks",
        (
            _acc("scores", "T n"),
            _ids("num_visible", "T"),
            _scalar("block_size"),
            _scalar("num_blocks"),
        ),
        (_mask("candidates", "T n"),),
        "entries of the best blocks by block maximum; the newest visible block is forced",
        exact=True,
        lowest_index_on_ties=True,
    ),
    OpSpec(
        "topk_positions",
        "topk_positions",
        (
            _acc("scores", "T n"),
            _ids("num_visible", "T"),
            _scalar("top_k"),
            _mask("candidates", "T n or None"),
        ),
        (_ids("positions", "T min(top_k,n)"),),
        "ids of the best visible (and candidate) entries, ascending, padded with -1",
        exact=True,
        lowest_index_on_ties=True,
    ),
    OpSpec(
        "compress_pool",
        "compress_pool",
        (_acc("kv", "T D"), _acc("gate", "T D"), _scalar("ratio")),
        (_act("latent", "T/ratio D"),),
        "per channel softmax over each group of `ratio` gates, weighted sum, one rounding",
    ),
    OpSpec(
        "hc_mixes",
        "hc_mixes",
        (
            _act("streams", "T m d"),
            _weight("fn", "(2+m)m m*d"),
            _weight("base", "(2+m)m"),
            _weight("scale", "3"),
            _scalar("norm_eps"),
            _scalar("hc_eps"),
            _scalar("iterations"),
        ),
        (_acc("pre", "T m"), _acc("post", "T m"), _acc("comb", "T m m")),
        "mHC coefficients with Sinkhorn; comb[source, destination]",
    ),
    OpSpec(
        "hc_collapse",
        "hc_collapse",
        (_act("streams", "T m d"), _acc("pre", "T m")),
        (_act("x", "T d"),),
        "sum_j pre_j * streams_j, one rounding",
    ),
    OpSpec(
        "hc_expand",
        "hc_expand",
        (
            _act("y", "T d"),
            _act("streams", "T m d"),
            _acc("post", "T m"),
            _acc("comb", "T m m"),
        ),
        (_act("streams_out", "T m d"),),
        "out_k = post_k * y + sum_j comb[j, k] * streams_j, one rounding",
    ),
    OpSpec(
        "engram_lookup",
        "engram_lookup",
        (_quantised("table", "rows W"), _ids("row_ids", "T F")),
        (_act("e", "T F*W"),),
        "dequantised table rows, concatenated per token",
        exact=True,
    ),
    OpSpec(
        "engram_gate",
        "engram_gate",
        (
            _act("streams", "T m d"),
            _act("key", "T m d"),
            _act("value", "T d"),
            _weight("q_weight", "m d"),
            _weight("k_weight", "m d"),
            _scalar("eps"),
        ),
        (_act("streams_out", "T m d"),),
        "streams_j + sigmoid(copysign(sqrt(max(|dot_j|, 1e-6)), dot_j)) * value",
    ),
    OpSpec(
        "output_projection",
        "output_projection",
        (_act("o", "T H D"), _quantised("weight", "G*L (H/G)*D"), _scalar("groups")),
        (_acc("u", "T G L"),),
        "grouped wo_a without activation quantisation, left unrounded (a rank may hold a part)",
    ),
    OpSpec(
        "vocab_argmax",
        "vocab_argmax",
        (_acc("logits", "T V"),),
        (_ids("ids", "T"),),
        "the lowest id among the maxima",
        exact=True,
        lowest_index_on_ties=True,
    ),
    OpSpec(
        "vocab_topk",
        "vocab_topk",
        (_acc("logits", "T V"), _scalar("top_k")),
        (_acc("values", "T top_k"), _ids("ids", "T top_k")),
        "descending values; among equals the lowest id first",
        lowest_index_on_ties=True,
    ),
)

OP_SHEET: dict[str, OpSpec] = {spec.name: spec for spec in _SPECS}


def op_named(name: str) -> OpSpec:
    """The sheet row of `name`.

    Raises:
        UsageError: unknown op; the message lists near names.
    """
    if name not in OP_SHEET:
        raise UsageError(f"op {name!r} is not known{near_names(name, OP_SHEET)}")
    return OP_SHEET[name]
