"""Weights of one layer as the model's code holds them.

Legend of shapes: N, K output and input features; E experts of this rank; H heads of this rank.
Linears that read the same input are stored as one weight with their rows joined.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.core.weights import QuantisedWeight

__all__ = [
    "AttentionWeights",
    "BlockWeights",
    "CompressorWeights",
    "DraftWeights",
    "EngramWeights",
    "HyperWeights",
    "IndexerWeights",
    "ModelWeights",
    "MoeWeights",
]


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """mHC coefficients' parameters: fn [(2+m)m, m*d], base [(2+m)m], scale [3], fp32."""

    fn: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    """wkv [D, d], wgate [D, d] or None at ratio 1, norm [D], and the index keys' wk, k_norm."""

    wkv: torch.Tensor
    wgate: torch.Tensor | None
    norm: torch.Tensor
    index_wk: torch.Tensor
    index_k_norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """wq_b [h*x, q_lora] and weights_proj [h, d]."""

    wq_b: QuantisedWeight
    weights_proj: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """wq_a and wkv joined [q_lora + D, d]; wq_b [H*D, q_lora]; wo_a, wo_b as laid out.

    `wo_b` is None on a rank without columns of it.
    """

    wq_a_wkv: QuantisedWeight
    q_norm: torch.Tensor
    kv_norm: torch.Tensor
    wq_b: QuantisedWeight
    wo_a: QuantisedWeight
    wo_b: QuantisedWeight | None
    sink: torch.Tensor
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Router [E_all, d], experts' w1 and w3 joined [E, 2I, d], w2 [E, d, I]; shared alike.

    Experts or the shared expert are None on a rank that has none of them.
    """

    gate: torch.Tensor
    bias: torch.Tensor
    w13: QuantisedWeight | None
    w2: QuantisedWeight | None
    shared_w13: QuantisedWeight | None
    shared_w2: QuantisedWeight | None


@dataclass(frozen=True, slots=True)
class EngramWeights:
    """table [rows, W], wkv [(m+1)d, F*W], q_weight and k_weight [m, d]."""

    table: QuantisedWeight
    wkv: QuantisedWeight
    q_weight: torch.Tensor
    k_weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One block, backbone or draft."""

    attn_norm: torch.Tensor
    ffn_norm: torch.Tensor
    hc_attn: HyperWeights
    hc_ffn: HyperWeights
    attention: AttentionWeights
    moe: MoeWeights
    engram: EngramWeights | None


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """What `mtp.*` adds to its blocks (model.md §2.10)."""

    blocks: tuple[BlockWeights, ...]
    main_proj: QuantisedWeight
    main_norm: torch.Tensor
    norm: torch.Tensor
    markov_embed: torch.Tensor
    markov_head: torch.Tensor
    confidence: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A whole rank: embed and head [V or V/cp, d]."""

    embed: torch.Tensor
    head: torch.Tensor
    norm: torch.Tensor
    blocks: tuple[BlockWeights, ...]
    draft: DraftWeights | None
