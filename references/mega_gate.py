"""DeepGEMM's fused router face (model.md §5.2, bf16_mega_gate)."""

from __future__ import annotations

import torch

from harness.core.numerics import FAST
from references.operands import require, require_shape
from references.router import router

__all__ = ["bf16_mega_gate"]


def bf16_mega_gate(
    x: torch.Tensor,
    weight: torch.Tensor,
    num_topk: int,
    route_scale: float = 1.0,
    scoring_func: str = "sqrtsoftplus",
    bias: torch.Tensor | None = None,
    image_bias: torch.Tensor | None = None,
    image_token_mask: torch.Tensor | None = None,
    to_physical_map: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert ids [T, num_topk] int64 and weights float32 of x [T, H], weight [E, H].

    Args:
        image_bias: takes the place of `bias` in the rows of `image_token_mask` [T] bool.
        to_physical_map: [E] logical to physical expert ids.

    Raises:
        UsageError: another scoring function, an image bias without a mask, shapes that differ.
    """
    op = "bf16_mega_gate"
    require(scoring_func == "sqrtsoftplus", op, f"scoring_func is {scoring_func!r}: sqrtsoftplus")
    require(
        (image_bias is None) == (image_token_mask is None),
        op,
        "image_bias and image_token_mask go together",
    )
    text_bias = bias if bias is not None else weight.new_zeros(weight.shape[0])
    ids, weights = router(x, weight, text_bias, num_topk, route_scale, 1.0, True, numerics=FAST)
    if image_bias is not None and image_token_mask is not None:
        require_shape(op, "image_token_mask", image_token_mask, (x.shape[0],))
        image = router(x, weight, image_bias, num_topk, route_scale, 1.0, True, numerics=FAST)
        ids = torch.where(image_token_mask[:, None], image[0], ids)
        weights = torch.where(image_token_mask[:, None], image[1], weights)
    if to_physical_map is not None:
        require_shape(op, "to_physical_map", to_physical_map, (weight.shape[0],))
        ids = to_physical_map[ids].long()
    return ids, weights
