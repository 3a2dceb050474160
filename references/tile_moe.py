"""TileKernels' MoE family (model.md §5.6): routing, permutation to expert order and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from references.operands import require, require_float, require_ids, require_shape

__all__ = ["FusedMapping", "moe"]


@dataclass(frozen=True, slots=True)
class FusedMapping:
    """Where (token, slot) pairs go when rows are sorted by expert.

    Attributes:
        token_topk_to_pos: [T, k] row of each pair, -1 for a pair without expert.
        pos_to_token, pos_to_token_topk: [R] token and flat pair t*k + slot of each row, -1 where
            a row is padding.
        pos_to_expert: [R] expert of each row, padding included.
        num_tokens_per_expert: [E] rows of each expert, aligned.
    """

    token_topk_to_pos: torch.Tensor
    pos_to_token: torch.Tensor
    pos_to_token_topk: torch.Tensor
    pos_to_expert: torch.Tensor
    num_tokens_per_expert: torch.Tensor


class moe:  # noqa: N801 - a namespace with the vendor's name
    """Routing and permutation."""

    @staticmethod
    def topk_gate(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
        """Expert ids int64 [T, num_topk] by falling score; ties to the smaller id."""
        require_float("topk_gate", "scores", scores, ndim=2)
        count = scores.shape[1]
        require(1 <= num_topk <= count, "topk_gate", f"num_topk {num_topk} not within 1..{count}")
        return scores.sort(dim=1, descending=True, stable=True).indices[:, :num_topk]

    @staticmethod
    def gate_scores(logits: torch.Tensor, scoring_func: str = "sqrtsoftplus") -> torch.Tensor:
        """float32 scores of router logits: "sqrtsoftplus", "sigmoid" or "softmax"."""
        z = logits.float()
        if scoring_func == "sqrtsoftplus":
            return torch.logaddexp(z, z.new_zeros(())).sqrt()
        if scoring_func == "sigmoid":
            return torch.sigmoid(z)
        require(scoring_func == "softmax", "gate_scores", f"scoring_func is {scoring_func!r}")
        return torch.softmax(z, dim=-1)

    @staticmethod
    def normalize_weight(topk_weights: torch.Tensor) -> torch.Tensor:
        """Weights [T, k] over their sum plus 1e-20."""
        require_float("normalize_weight", "topk_weights", topk_weights, ndim=2)
        return topk_weights / (topk_weights.sum(1, keepdim=True) + 1e-20)

    @staticmethod
    def group_count(topk_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
        """int32 [num_groups]: pairs of each expert; -1 counts for none."""
        _require_experts("group_count", topk_idx, num_groups)
        ids = topk_idx.flatten().long()
        return torch.bincount(ids[ids >= 0], minlength=num_groups).int()

    @staticmethod
    def mask_indices_by_tp(
        topk_idx: torch.Tensor, num_experts: int, num_ranks: int, rank: int
    ) -> torch.Tensor:
        """Local expert ids of `rank`, -1 for pairs that other ranks serve."""
        op = "mask_indices_by_tp"
        _require_experts(op, topk_idx, num_experts)
        require(num_experts % num_ranks == 0, op, f"{num_experts} experts over {num_ranks} ranks")
        local = num_experts // num_ranks
        own = topk_idx - rank * local
        return torch.where((topk_idx >= 0) & (own >= 0) & (own < local), own, -1)

    @staticmethod
    def aux_fi(topk_idx: torch.Tensor, num_experts: int, num_aux_topk: int) -> torch.Tensor:
        """float32 [E]: load of each expert relative to an even one."""
        counts = moe.group_count(topk_idx, num_experts).float()
        return counts * num_experts / max(1, len(topk_idx) * num_aux_topk)

    @staticmethod
    def get_fused_mapping(
        topk_idx: torch.Tensor, num_experts: int, alignment: int = 1
    ) -> FusedMapping:
        """Rows sorted by expert (ties: token, slot), each expert padded to `alignment` rows."""
        _require_experts("get_fused_mapping", topk_idx, num_experts)
        flat = topk_idx.flatten().long()
        num_topk = topk_idx.shape[1]
        counts = torch.bincount(flat[flat >= 0], minlength=num_experts)
        aligned = -(-counts // alignment) * alignment
        first_row = aligned.cumsum(0) - aligned
        pairs = torch.argsort(flat, stable=True)[int((flat < 0).sum()) :]
        experts = flat[pairs]
        rank_in_expert = torch.arange(len(pairs)) - (counts.cumsum(0) - counts)[experts]
        rows = first_row[experts] + rank_in_expert
        to_pos = torch.full_like(flat, -1)
        to_pos[pairs] = rows
        to_pair = torch.full((int(aligned.sum()),), -1)
        to_pair[rows] = pairs
        to_token = torch.where(to_pair >= 0, to_pair // num_topk, -1)
        owners = torch.repeat_interleave(torch.arange(num_experts), aligned)
        return FusedMapping(
            to_pos.reshape(topk_idx.shape), to_token, to_pair, owners, aligned.int()
        )

    @staticmethod
    def expand_to_fused(x: torch.Tensor, mapping: FusedMapping) -> torch.Tensor:
        """Rows [R, H] in expert order of x [T, H]; padding rows are 0."""
        absent = mapping.pos_to_token < 0
        return x[mapping.pos_to_token.clamp(min=0)].masked_fill(absent.unsqueeze(1), 0)

    @staticmethod
    def expand_to_fused_with_sf(
        x: torch.Tensor, scale: torch.Tensor, mapping: FusedMapping
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of fp8 data with scales; padding rows have data and scale 0."""
        op = "expand_to_fused_with_sf"
        require(x.dtype == torch.float8_e4m3fn, op, f"x has dtype {x.dtype}: float8_e4m3fn")
        data = moe.expand_to_fused(x.view(torch.uint8), mapping).view(x.dtype)
        return data, moe.expand_to_fused(scale, mapping)

    @staticmethod
    def reduce_fused(
        x: torch.Tensor,
        mapping: FusedMapping,
        topk_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[T, H]: float32 sum of a token's rows (times topk_weights [T, k]), in x's dtype."""
        op = "reduce_fused"
        require_float(op, "x", x, ndim=2)
        positions = mapping.token_topk_to_pos
        require_shape(op, "x", x, (len(mapping.pos_to_token), x.shape[1]))
        rows = x[positions.clamp(min=0)].float().masked_fill((positions < 0).unsqueeze(-1), 0)
        if topk_weights is not None:
            require_shape(op, "topk_weights", topk_weights, tuple(positions.shape))
            rows = rows * topk_weights.float().unsqueeze(-1)
        return rows.sum(1).to(x.dtype)


def _require_experts(op: str, topk_idx: torch.Tensor, num_experts: int) -> None:
    require_ids(op, "topk_idx", topk_idx, ndim=2)
    inside = bool(((topk_idx >= -1) & (topk_idx < num_experts)).all())
    require(inside, op, f"topk_idx must be within -1..{num_experts - 1}")
