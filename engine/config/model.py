"""The model's dimensions and the role of each layer (model.md §1)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DraftConfig",
    "EngramConfig",
    "IndexConfig",
    "LayerRole",
    "ModelConfig",
    "RopeConfig",
]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary tables: `main` (theta, plain) and `compress` (compress_theta, YaRN).

    `original_positions` is 0 where there is no YaRN.
    """

    theta: float
    compress_theta: float
    factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_positions: int = 0


@dataclass(frozen=True, slots=True)
class EngramConfig:
    """N-gram tables of the engram layers (model.md §2.9)."""

    layer_ids: tuple[int, ...]
    max_ngram: int
    num_heads: int
    head_dim: int
    vocab_size: int
    pad_token_id: int
    compressed_vocab_size: int
    num_embeddings: tuple[int, ...]

    @property
    def rows_per_token(self) -> int:
        """Table rows a token looks up in one layer: one per order 2..max_ngram and head."""
        return (self.max_ngram - 1) * self.num_heads


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """The indexer and its candidate blocks (model.md §2.6, §2.7)."""

    num_heads: int
    head_dim: int
    top_k: int
    candidate_source: int | None
    candidate_blocks: int
    candidate_block_size: int


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The DSpark draft stages (model.md §2.10)."""

    num_stages: int
    block_size: int
    noise_token_id: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class LayerRole:
    """What one layer does (model.md §1.2).

    Attributes:
        ratio: of the compressed cache it reads; 0 means window attention only.
        kv_owner: layer whose compressed cache it reads, None at ratio 0.
        owns_kv: it has a compressor and index keys of its own.
        runs_indexer: it selects entries; other layers reuse the last selection.
        publishes_candidates, uses_candidates: two-level top-k.
        engram_index: which engram table it has, None without one.
        is_tap: its input is averaged over streams for the draft model.
    """

    layer_id: int
    ratio: int
    kv_owner: int | None
    owns_kv: bool
    runs_indexer: bool
    publishes_candidates: bool
    uses_candidates: bool
    engram_index: int | None
    is_tap: bool

    @property
    def kind(self) -> str:
        """Name of the kind, shared by layers that run the same graph."""
        if self.ratio == 0:
            base = "window"
        elif self.owns_kv:
            base = f"full_r{self.ratio}" + ("_candidates" if self.publishes_candidates else "")
        elif self.runs_indexer:
            base = f"reindex_r{self.ratio}"
        else:
            base = f"reuse_r{self.ratio}"
        return base + ("_engram" if self.engram_index is not None else "")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything config.json fixes. Lengths are in elements, eps values are absolute."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    expert_width: int
    num_experts: int
    experts_per_token: int
    route_scale: float
    gate_temp: float
    normalise_experts: bool
    swiglu_limit: float
    norm_eps: float
    window: int
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    index: IndexConfig
    hc_mult: int
    hc_iterations: int
    hc_eps: float
    rope: RopeConfig
    engram: EngramConfig | None
    draft: DraftConfig | None
    max_positions: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int

    @property
    def heads_per_group(self) -> int:
        """Consecutive heads that share one block of wo_a."""
        return self.num_heads // self.o_groups

    def role(self, layer_id: int) -> LayerRole:
        """The role of a backbone layer."""
        ratio = self.ratios[layer_id]
        candidate = self.index.candidate_source
        runs_indexer = layer_id in self.index_sources
        engram_ids = self.engram.layer_ids if self.engram else ()
        taps = self.draft.target_layer_ids if self.draft else ()
        owners = [source for source in self.kv_sources if source <= layer_id]
        return LayerRole(
            layer_id=layer_id,
            ratio=ratio,
            kv_owner=max(owners) if ratio and owners else None,
            owns_kv=layer_id in self.kv_sources,
            runs_indexer=runs_indexer,
            publishes_candidates=layer_id == candidate,
            uses_candidates=runs_indexer and candidate is not None and layer_id > candidate,
            engram_index=engram_ids.index(layer_id) if layer_id in engram_ids else None,
            is_tap=layer_id in taps,
        )

    @property
    def roles(self) -> tuple[LayerRole, ...]:
        """Roles of all backbone layers."""
        return tuple(self.role(layer_id) for layer_id in range(self.num_layers))
