"""Which tensors a checkpoint of this architecture has: names, dtypes, shapes (model.md §4.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tiny_checkpoints.geometry import Geometry

__all__ = ["Form", "TensorSpec", "Unit", "inventory", "is_ignored", "is_optional"]

Form = Literal["fp8", "fp4", "fp8_rows", "bf16", "f32"]
_TILE = 32
_IGNORED_PREFIXES = ("vision.", "aligner.", "image_")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the files."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """One parameter: a plain tensor, or a quantised weight with its scale.

    Attributes:
        name: of the parameter; quantised ones are stored as name.weight and name.scale.
        form: how it is stored.
        shape: logical shape [N, K] (fp4: before packing).
        part: the group of tensors that share a shard: "embed", "layers.3", "head", "mtp.0",
            "engram.1".
    """

    name: str
    form: Form
    shape: tuple[int, ...]
    part: str

    @property
    def num_parameters(self) -> int:
        """Logical weights; scales do not count."""
        return math.prod(self.shape)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """What the files hold for it."""
        if self.form == "bf16":
            return (TensorSpec(self.name, "BF16", self.shape),)
        if self.form == "f32":
            return (TensorSpec(self.name, "F32", self.shape),)
        rows, columns = self.shape
        scale_columns = -(-columns // _TILE)
        if self.form == "fp4":
            return (
                TensorSpec(f"{self.name}.weight", "I8", (rows, columns // 2)),
                TensorSpec(f"{self.name}.scale", "F8_E8M0", (rows, scale_columns)),
            )
        scale_rows = rows if self.form == "fp8_rows" else -(-rows // _TILE)
        return (
            TensorSpec(f"{self.name}.weight", "F8_E4M3", self.shape),
            TensorSpec(f"{self.name}.scale", "F8_E8M0", (scale_rows, scale_columns)),
        )


def inventory(geometry: Geometry) -> tuple[Unit, ...]:
    """Every text parameter, in the order of the shards."""
    return tuple(_all_units(geometry))


def is_ignored(name: str) -> bool:
    """Whether a text-only reader passes over this tensor (vision tower and its tokens)."""
    return name.startswith(_IGNORED_PREFIXES)


def is_optional(name: str) -> bool:
    """Whether a checkpoint may lack it: only image tokens use `bias_vl`."""
    return name.endswith(".ffn.gate.bias_vl")


def _all_units(g: Geometry) -> Iterator[Unit]:
    yield Unit("embed.weight", "bf16", (g.vocab_size, g.hidden_size), "embed")
    for layer in range(g.num_hidden_layers):
        prefix = f"layers.{layer}."
        yield from _block(g, prefix, g.n_routed_experts)
        if layer in g.kv_source_layer_ids:
            yield from _kv_source(g, prefix, g.ratio(layer))
        if layer in g.index_source_layer_ids:
            yield from _index_source(g, prefix)
        if layer in g.engram_layer_ids:
            yield from _engram(g, layer)
    yield Unit("head.weight", "bf16", (g.vocab_size, g.hidden_size), "head")
    yield Unit("norm.weight", "bf16", (g.hidden_size,), "head")
    for stage in range(g.num_nextn_predict_layers):
        yield from _block(g, f"mtp.{stage}.", g.dspark_n_routed_experts)
    if g.num_nextn_predict_layers:
        yield from _draft_ends(g)


def _block(g: Geometry, prefix: str, num_experts: int) -> Iterator[Unit]:
    part = prefix.rstrip(".")
    d, heads, head_dim = g.hidden_size, g.num_attention_heads, g.head_dim
    group_width = heads // g.o_groups * head_dim
    latent = g.o_groups * g.o_lora_rank
    units: list[tuple[str, Form, tuple[int, ...]]] = [
        ("attn.wq_a", "fp8", (g.q_lora_rank, d)),
        ("attn.q_norm.weight", "bf16", (g.q_lora_rank,)),
        ("attn.wq_b", "fp8", (heads * head_dim, g.q_lora_rank)),
        ("attn.wkv", "fp8", (head_dim, d)),
        ("attn.kv_norm.weight", "bf16", (head_dim,)),
        ("attn.wo_a", "fp8", (latent, group_width)),
        ("attn.wo_b", "fp8", (d, latent)),
        ("attn.attn_sink", "f32", (heads,)),
        ("attn_norm.weight", "bf16", (d,)),
        ("ffn_norm.weight", "bf16", (d,)),
        ("ffn.gate.weight", "bf16", (num_experts, d)),
        ("ffn.gate.bias", "f32", (num_experts,)),
        ("ffn.gate.bias_vl", "f32", (num_experts,)),
    ]
    for sublayer in ("hc_attn", "hc_ffn"):
        units += [
            (f"{sublayer}_fn", "f32", (g.num_hc_coefficients, g.hc_mult * d)),
            (f"{sublayer}_base", "f32", (g.num_hc_coefficients,)),
            (f"{sublayer}_scale", "f32", (3,)),
        ]
    experts: list[tuple[str, Form]] = [(f"ffn.experts.{e}", "fp4") for e in range(num_experts)]
    if g.n_shared_experts:
        experts.append(("ffn.shared_experts", "fp8"))
    for name, form in experts:
        units += [
            (f"{name}.w1", form, (g.moe_intermediate_size, d)),
            (f"{name}.w3", form, (g.moe_intermediate_size, d)),
            (f"{name}.w2", form, (d, g.moe_intermediate_size)),
        ]
    for name, form, shape in units:
        yield Unit(prefix + name, form, shape, part)


def _kv_source(g: Geometry, prefix: str, ratio: int) -> Iterator[Unit]:
    part = prefix.rstrip(".")
    yield Unit(f"{prefix}attn.compressor.wkv.weight", "bf16", (g.head_dim, g.hidden_size), part)
    if ratio > 1:
        name = f"{prefix}attn.compressor.wgate.weight"
        yield Unit(name, "bf16", (g.head_dim, g.hidden_size), part)
    yield Unit(f"{prefix}attn.compressor.norm.weight", "bf16", (g.head_dim,), part)
    yield Unit(f"{prefix}attn.indexer.wk.weight", "bf16", (g.index_head_dim, g.head_dim), part)
    yield Unit(f"{prefix}attn.indexer.k_norm.weight", "bf16", (g.index_head_dim,), part)


def _index_source(g: Geometry, prefix: str) -> Iterator[Unit]:
    part = prefix.rstrip(".")
    rows = g.index_n_heads * g.index_head_dim
    yield Unit(f"{prefix}attn.indexer.wq_b", "fp8", (rows, g.q_lora_rank), part)
    name = f"{prefix}attn.indexer.weights_proj.weight"
    yield Unit(name, "bf16", (g.index_n_heads, g.hidden_size), part)


def _engram(g: Geometry, layer: int) -> Iterator[Unit]:
    prefix, part = f"layers.{layer}.engram.", f"engram.{layer}"
    rows = g.engram_num_embeddings[g.engram_layer_ids.index(layer)]
    columns = g.engram_columns * g.engram_head_dim
    per_stream = (g.hc_mult, g.hidden_size)
    yield Unit(f"{prefix}embed", "fp8_rows", (rows, g.engram_head_dim), part)
    yield Unit(f"{prefix}wkv", "fp8", ((g.hc_mult + 1) * g.hidden_size, columns), part)
    yield Unit(f"{prefix}q_weight", "bf16", per_stream, part)
    yield Unit(f"{prefix}k_weight", "bf16", per_stream, part)


def _draft_ends(g: Geometry) -> Iterator[Unit]:
    d, last = g.hidden_size, f"mtp.{g.num_nextn_predict_layers - 1}"
    taps = len(g.dspark_target_layer_ids) * d
    markov = (g.vocab_size, g.dspark_markov_rank)
    yield Unit("mtp.0.main_proj", "fp8", (d, taps), "mtp.0")
    yield Unit("mtp.0.main_norm.weight", "bf16", (d,), "mtp.0")
    yield Unit(f"{last}.norm.weight", "bf16", (d,), last)
    yield Unit(f"{last}.markov_head.embed.weight", "bf16", markov, last)
    yield Unit(f"{last}.markov_head.head.weight", "bf16", markov, last)
    confidence = (1, d + g.dspark_markov_rank)
    yield Unit(f"{last}.confidence_head.proj.weight", "bf16", confidence, last)
