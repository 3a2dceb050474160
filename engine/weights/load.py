"""Reads one rank's weights: official tensor names and shapes (model.md §4.2)."""

from __future__ import annotations

import torch

from engine.config.model import LayerRole, ModelConfig
from engine.weights.checkpoint import Span, TensorSource
from engine.weights.layout import RankLayout
from engine.weights.tensors import (
    AttentionWeights,
    BlockWeights,
    CompressorWeights,
    DraftWeights,
    EngramWeights,
    HyperWeights,
    IndexerWeights,
    ModelWeights,
    MoeWeights,
)
from harness.core.weights import QuantisedWeight

__all__ = ["WeightLoader"]

_TILE = 32


def _tiles(length: int) -> int:
    return -(-length // _TILE)


def _tile_span(span: Span | None) -> Span | None:
    return None if span is None else (span[0] // _TILE, _tiles(span[1]))


class WeightLoader:
    """Builds the weight objects of one rank.

    Args:
        source: checkpoint files, or the meta stand-in.
        layout: which slices this rank reads.
        parameter_dtype: dtype that bf16 and fp32 parameters are widened to; None keeps them.

    Raises:
        InputError: see Checkpoint.
    """

    def __init__(
        self,
        source: TensorSource,
        layout: RankLayout,
        parameter_dtype: torch.dtype | None = None,
    ) -> None:
        self.source = source
        self.layout = layout
        self.config = layout.config
        self.parameter_dtype = parameter_dtype

    def load(self, *, with_draft: bool = True) -> ModelWeights:
        """Everything this rank holds."""
        config = self.config
        vocab = self.layout.vocab_span(config.vocab_size)
        shape = (config.vocab_size, config.hidden_size)
        return ModelWeights(
            embed=self.source.read("embed.weight", "BF16", shape, rows=vocab),
            head=self._parameter("head.weight", shape, rows=vocab),
            norm=self._parameter("norm.weight", (config.hidden_size,)),
            blocks=tuple(self._backbone_block(role) for role in config.roles),
            draft=self._draft() if with_draft and config.draft else None,
        )

    def _parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str = "BF16",
        rows: Span | None = None,
    ) -> torch.Tensor:
        tensor = self.source.read(name, dtype, shape, rows=rows)
        return tensor if self.parameter_dtype is None else tensor.to(self.parameter_dtype)

    def _fp8(
        self,
        name: str,
        shape: tuple[int, int],
        rows: Span | None = None,
        columns: Span | None = None,
    ) -> QuantisedWeight:
        """An fp8 linear. Cuts lie on the 32x32 tiles of its scale: head_dim, o_lora_rank and
        the expert's width are multiples of 32 (engine.config.constraints)."""
        scale_shape = (_tiles(shape[0]), _tiles(shape[1]))
        codes = self.source.read(f"{name}.weight", "F8_E4M3", shape, rows=rows, columns=columns)
        scale = self.source.read(
            f"{name}.scale",
            "F8_E8M0",
            scale_shape,
            rows=_tile_span(rows),
            columns=_tile_span(columns),
        )
        return QuantisedWeight(codes, scale, "fp8_block")

    def _fp8_joined(
        self, names: tuple[str, ...], shapes: tuple[tuple[int, int], ...], rows: Span | None = None
    ) -> QuantisedWeight:
        parts = [self._fp8(name, shape, rows) for name, shape in zip(names, shapes, strict=True)]
        return QuantisedWeight(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scale for part in parts]),
            "fp8_block",
        )

    def _backbone_block(self, role: LayerRole) -> BlockWeights:
        config = self.config
        prefix = f"layers.{role.layer_id}."
        moe = self._moe(prefix + "ffn.", config.num_experts, role.layer_id)
        return self._block(prefix, role, moe)

    def _block(self, prefix: str, role: LayerRole, moe: MoeWeights) -> BlockWeights:
        width = (self.config.hidden_size,)
        return BlockWeights(
            attn_norm=self._parameter(prefix + "attn_norm.weight", width),
            ffn_norm=self._parameter(prefix + "ffn_norm.weight", width),
            hc_attn=self._hyper(prefix + "hc_attn_"),
            hc_ffn=self._hyper(prefix + "hc_ffn_"),
            attention=self._attention(prefix + "attn.", role),
            moe=moe,
            engram=self._engram(prefix + "engram.", role),
        )

    def _hyper(self, prefix: str) -> HyperWeights:
        m = self.config.hc_mult
        mixes = (2 + m) * m
        return HyperWeights(
            fn=self._parameter(prefix + "fn", (mixes, m * self.config.hidden_size), "F32"),
            base=self._parameter(prefix + "base", (mixes,), "F32"),
            scale=self._parameter(prefix + "scale", (3,), "F32"),
        )

    def _attention(self, prefix: str, role: LayerRole) -> AttentionWeights:
        config, heads = self.config, self.layout.head_layout
        head_dim, lora = config.head_dim, config.q_lora_rank
        all_rows = config.num_heads * head_dim
        group_rows = tuple(group * config.o_lora_rank for group in heads.groups)
        wo_a_shape = (config.o_groups * config.o_lora_rank, config.heads_per_group * head_dim)
        wo_b_shape = (config.hidden_size, config.o_groups * config.o_lora_rank)
        columns = heads.output_columns
        return AttentionWeights(
            wq_a_wkv=self._fp8_joined(
                (prefix + "wq_a", prefix + "wkv"),
                ((lora, config.hidden_size), (head_dim, config.hidden_size)),
            ),
            q_norm=self._parameter(prefix + "q_norm.weight", (lora,)),
            kv_norm=self._parameter(prefix + "kv_norm.weight", (head_dim,)),
            wq_b=self._fp8(
                prefix + "wq_b",
                (all_rows, lora),
                rows=(heads.heads[0] * head_dim, heads.heads[1] * head_dim),
            ),
            wo_a=self._fp8(
                prefix + "wo_a",
                wo_a_shape,
                rows=(group_rows[0], group_rows[1]),
                columns=heads.head_columns,
            ),
            wo_b=(
                self._fp8(prefix + "wo_b", wo_b_shape, columns=columns)
                if columns[0] < columns[1]
                else None
            ),
            sink=self._parameter(prefix + "attn_sink", (config.num_heads,), "F32", heads.heads),
            compressor=self._compressor(prefix, role) if role.owns_kv else None,
            indexer=self._indexer(prefix + "indexer.") if role.runs_indexer else None,
        )

    def _compressor(self, prefix: str, role: LayerRole) -> CompressorWeights:
        config = self.config
        shape = (config.head_dim, config.hidden_size)
        index_shape = (config.index.head_dim, config.head_dim)
        return CompressorWeights(
            wkv=self._parameter(prefix + "compressor.wkv.weight", shape),
            wgate=(
                self._parameter(prefix + "compressor.wgate.weight", shape)
                if role.ratio > 1
                else None
            ),
            norm=self._parameter(prefix + "compressor.norm.weight", (config.head_dim,)),
            index_wk=self._parameter(prefix + "indexer.wk.weight", index_shape),
            index_k_norm=self._parameter(prefix + "indexer.k_norm.weight", index_shape[:1]),
        )

    def _indexer(self, prefix: str) -> IndexerWeights:
        index = self.config.index
        shape = (index.num_heads * index.head_dim, self.config.q_lora_rank)
        return IndexerWeights(
            wq_b=self._fp8(prefix + "wq_b", shape),
            weights_proj=self._parameter(
                prefix + "weights_proj.weight", (index.num_heads, self.config.hidden_size)
            ),
        )

    def _moe(self, prefix: str, num_experts: int, layer_index: int) -> MoeWeights:
        experts = range(*self.layout.expert_span(num_experts, layer_index))
        shared = self.layout.shared_width
        has_shared = shared is not None or self.layout.owns_layer(layer_index)
        width, inner = self.config.hidden_size, self.config.expert_width
        return MoeWeights(
            gate=self._parameter(prefix + "gate.weight", (num_experts, width)),
            bias=self._parameter(prefix + "gate.bias", (num_experts,), "F32"),
            w13=self._experts(prefix, experts, ("w1", "w3"), (inner, width)),
            w2=self._experts(prefix, experts, ("w2",), (width, inner)),
            shared_w13=(
                self._fp8_joined(
                    (prefix + "shared_experts.w1", prefix + "shared_experts.w3"),
                    ((inner, width), (inner, width)),
                    rows=shared,
                )
                if has_shared
                else None
            ),
            shared_w2=(
                self._fp8(prefix + "shared_experts.w2", (width, inner), columns=shared)
                if has_shared
                else None
            ),
        )

    def _experts(
        self, prefix: str, experts: range, names: tuple[str, ...], shape: tuple[int, int]
    ) -> QuantisedWeight | None:
        """[E, len(names)*N, K/2] codes and their scales."""
        if not experts:
            return None
        stems = [[f"{prefix}experts.{expert}.{name}" for name in names] for expert in experts]
        codes = [[f"{stem}.weight" for stem in group] for group in stems]
        scales = [[f"{stem}.scale" for stem in group] for group in stems]
        return QuantisedWeight(
            self.source.stack(codes, "I8", (shape[0], shape[1] // 2)),
            self.source.stack(scales, "F8_E8M0", (shape[0], shape[1] // _TILE)),
            "fp4",
        )

    def _engram(self, prefix: str, role: LayerRole) -> EngramWeights | None:
        engram = self.config.engram
        if engram is None or role.engram_index is None:
            return None
        rows, width = engram.num_embeddings[role.engram_index], engram.head_dim
        m, hidden = self.config.hc_mult, self.config.hidden_size
        return EngramWeights(
            # Read whole: the pages of the mapped file are one copy for all ranks of a host.
            table=QuantisedWeight(
                self.source.read(prefix + "embed.weight", "F8_E4M3", (rows, width)),
                self.source.read(prefix + "embed.scale", "F8_E8M0", (rows, width // _TILE)),
                "fp8_row",
            ),
            wkv=self._fp8(prefix + "wkv", ((m + 1) * hidden, engram.rows_per_token * width)),
            q_weight=self._parameter(prefix + "q_weight", (m, hidden)),
            k_weight=self._parameter(prefix + "k_weight", (m, hidden)),
        )

    def _draft(self) -> DraftWeights:
        draft = self.config.draft
        assert draft is not None
        hidden, vocab = self.config.hidden_size, self.config.vocab_size
        num_taps, rank = len(draft.target_layer_ids), draft.markov_rank
        last = f"mtp.{draft.num_stages - 1}."
        return DraftWeights(
            blocks=tuple(self._draft_block(stage) for stage in range(draft.num_stages)),
            main_proj=self._fp8("mtp.0.main_proj", (hidden, num_taps * hidden)),
            main_norm=self._parameter("mtp.0.main_norm.weight", (hidden,)),
            norm=self._parameter(last + "norm.weight", (hidden,)),
            markov_embed=self._parameter(last + "markov_head.embed.weight", (vocab, rank)),
            markov_head=self._parameter(
                last + "markov_head.head.weight",
                (vocab, rank),
                rows=self.layout.vocab_span(vocab),
            ),
            confidence=self._parameter(last + "confidence_head.proj.weight", (1, hidden + rank)),
        )

    def _draft_block(self, stage: int) -> BlockWeights:
        draft = self.config.draft
        assert draft is not None
        index = self.config.num_layers + stage
        prefix = f"mtp.{stage}."
        moe = self._moe(prefix + "ffn.", draft.num_experts, index)
        return self._block(prefix, draft_role(self.config, stage), moe)


def draft_role(config: ModelConfig, stage: int) -> LayerRole:
    """A draft stage attends to its window and its block only."""
    return LayerRole(
        layer_id=config.num_layers + stage,
        ratio=0,
        kv_owner=None,
        owns_kv=False,
        runs_indexer=False,
        publishes_candidates=False,
        uses_candidates=False,
        engram_index=None,
        is_tap=False,
    )
