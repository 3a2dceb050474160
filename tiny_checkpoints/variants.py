"""The tiny checkpoints by name: dimensions of model.md §6, with 32 index heads in all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType

from harness.core.errors import UsageError
from harness.core.suggest import near_names

__all__ = ["VARIANTS", "Gains", "LayerPlan", "Variant", "variant_named"]


@dataclass(frozen=True, slots=True)
class Gains:
    """How loud the parts of the model are, relative to unit-variance inputs.

    Attributes:
        branch: of every sublayer's last projection. Small, because a layer that reads mostly the
            embedding does not amplify the rounding noise of the layers before it; the head
            makes up for it (`tail`).
        query: of attention queries; sets how peaked attention is.
        router: of router logits.
        cluster: amplitude of an embedding's successor direction.
        compressed: norm weight of compressed entries. Which of two almost equally good entries
            is selected hangs on the last bit; quiet entries keep that from deciding tokens.
        tail: amplitude of embeddings in the channels that decide within a cluster. Small: the
            layers decide. 1, with a `tail_head` that does not amplify: the embedding decides
            and tokens survive any noise and most faults ("steady").
        tail_head: of head rows in those channels; brings the quiet branches to about one logit.
    """

    branch: float = 0.04
    query: float = 1.0
    router: float = 1.0
    cluster: float = 1.0
    compressed: float = 0.5
    tail: float = 0.05
    tail_head: float = 8.0


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Which layer is of which kind; the default has every kind once (model.md §6).

    Attributes:
        compress_ratios: of the backbone layers; a draft stage has ratio 0.
    """

    compress_ratios: tuple[int, ...] = (0, 0, 2, 2, 2, 2, 1, 1, 1, 1)
    kv_sources: tuple[int, ...] = (2, 4, 6)
    index_sources: tuple[int, ...] = (2, 4, 6, 8)
    candidate_source: int = 6
    engram_layers: tuple[int, ...] = (1, 4)
    draft_stages: int = 3
    draft_targets: tuple[int, ...] = (7, 8, 9)


@dataclass(frozen=True, slots=True)
class Variant:
    """One tiny checkpoint.

    Attributes:
        name: what users type.
        seed: part of every random stream's name.
        hidden_size ... engram_head_dim: as in model.md §6's table.
        purpose: one line for people.
        is_trained: its weights are stored in the package; others are drawn.
    """

    name: str
    purpose: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    draft_experts: int
    draft_experts_per_tok: int
    index_head_dim: int
    index_topk: int
    candidate_blocks: int
    candidate_block_size: int
    sliding_window: int
    engram_head_dim: int
    markov_rank: int
    rope_original_positions: int = 256
    seed: int = 1
    gains: Gains = field(default_factory=Gains)
    index_heads: int = 32
    residual_streams: int = 4
    layers: LayerPlan = field(default_factory=LayerPlan)
    is_trained: bool = False


_TINY_A = Variant(
    name="tiny-A",
    purpose="smallest legal geometry; the demo and most tests",
    vocab_size=512,
    hidden_size=256,
    num_heads=8,
    head_dim=64,
    rope_dim=32,
    q_lora_rank=128,
    o_groups=4,
    o_lora_rank=64,
    moe_intermediate_size=128,
    num_experts=8,
    num_experts_per_tok=2,
    draft_experts=4,
    draft_experts_per_tok=2,
    index_head_dim=32,
    index_topk=8,
    candidate_blocks=4,
    candidate_block_size=4,
    sliding_window=16,
    engram_head_dim=32,
    markov_rank=32,
)

_VARIANTS = (
    _TINY_A,
    replace(
        _TINY_A,
        name="steady",
        purpose="tiny-A whose tokens hang on embeddings alone: robust, blind, for demonstrations",
        gains=Gains(tail=1.0, tail_head=1.5),
    ),
    Variant(
        "tiny-B",
        "tiles of 128 like the hardware's",
        vocab_size=1024,
        hidden_size=512,
        num_heads=8,
        head_dim=128,
        rope_dim=32,
        q_lora_rank=256,
        o_groups=4,
        o_lora_rank=128,
        moe_intermediate_size=256,
        num_experts=16,
        num_experts_per_tok=3,
        draft_experts=8,
        draft_experts_per_tok=2,
        index_head_dim=64,
        index_topk=16,
        candidate_blocks=4,
        candidate_block_size=8,
        sliding_window=32,
        engram_head_dim=64,
        markov_rank=64,
    ),
    Variant(
        "tiny-C",
        "the published heads, 64 of width 512; for speed over ranks (293 MiB)",
        vocab_size=1024,
        hidden_size=1024,
        num_heads=64,
        head_dim=512,
        rope_dim=64,
        q_lora_rank=256,
        o_groups=8,
        o_lora_rank=128,
        moe_intermediate_size=256,
        num_experts=16,
        num_experts_per_tok=3,
        draft_experts=8,
        draft_experts_per_tok=2,
        index_head_dim=128,
        index_topk=16,
        candidate_blocks=4,
        candidate_block_size=8,
        sliding_window=128,
        engram_head_dim=64,
        markov_rank=64,
        rope_original_positions=65536,
    ),
    Variant(
        "tiny-D",
        "64 heads and 64 experts, for 64 simulated ranks",
        vocab_size=512,
        hidden_size=256,
        num_heads=64,
        head_dim=32,
        rope_dim=16,
        q_lora_rank=128,
        o_groups=8,
        o_lora_rank=32,
        moe_intermediate_size=64,
        num_experts=64,
        num_experts_per_tok=2,
        draft_experts=4,
        draft_experts_per_tok=2,
        index_head_dim=32,
        index_topk=8,
        candidate_blocks=4,
        candidate_block_size=4,
        sliding_window=16,
        engram_head_dim=32,
        markov_rank=32,
    ),
    replace(
        _TINY_A,
        name="tiny-T",
        purpose="trained to copy and recall: tokens hang on window, compressed entries, experts",
        vocab_size=320,
        hidden_size=64,
        num_heads=4,
        q_lora_rank=64,
        o_lora_rank=32,
        moe_intermediate_size=32,
        index_heads=8,
        residual_streams=2,
        layers=LayerPlan(
            compress_ratios=(0, 2, 2, 1, 1, 1),
            kv_sources=(1, 3),
            index_sources=(1, 3, 5),
            candidate_source=3,
            engram_layers=(0,),
            draft_stages=0,
            draft_targets=(3, 4, 5),
        ),
        is_trained=True,
    ),
)

VARIANTS = MappingProxyType({variant.name: variant for variant in _VARIANTS})


def variant_named(name: str) -> Variant:
    """Look a variant up.

    Raises:
        UsageError: unknown name; the message lists near names.
    """
    if name not in VARIANTS:
        raise UsageError(f"tiny checkpoint {name!r} is not known{near_names(name, VARIANTS)}")
    return VARIANTS[name]
