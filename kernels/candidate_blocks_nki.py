"""Candidate blocks of the two-level top-k: entries of the best blocks by their largest score.

Dimensions:
    T tokens, any number; n entries, any; B = block_size, <= 4096; b = ceil(n / B) blocks, <= 8192.

Layouts: scores [T, n] fp32; num_visible fp32 [T, 1]; mask uint8 [T, n] (bool after the host).
Accumulation: none; maxima and comparisons in fp32.
Expected error: none. The block of the newest visible entry is always among the chosen, a block
without a visible entry never; of equal blocks the lower wins.

Tiling (LNC=2: each core takes half of the tokens):
    for 128 tokens at a time, one a partition:
        for <= 4096 entries: visible scores -> SBUF, -inf elsewhere; VectorE max over each block
        the newest block (first position < num_visible <= first position + B) -> +inf
        num_blocks/8 rounds of max8 + match_replace8 take the best out; kept = what changed
        kept -> broadcast over B -> uint8 -> HBM
    With num_blocks >= b every block with a visible entry is kept and no round is needed.

Refuses: numerics other than trn2's, scores that are not fp32, b > 8192, B > 4096. A visible score
of +inf or NaN is outside the contract.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_ids, require_limit, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.score_selection import (
    CHUNK_SCORES,
    ROUND,
    positions_row,
    remove_largest,
    show_scores,
    visible_mask,
)
from kernels.tiling import PARTITIONS, ceil_div, core_share

__all__ = ["candidate_blocks", "candidate_blocks_kernel"]

# The forced block: above every score, but not +inf, which marks unused slots of a round.
_FORCED = 3.4e38
# Of a row in SBUF at once: block scores, a working copy and first positions, fp32.
_MAX_BLOCKS = 8192


def _block_scores(scores_hbm: Any, limit_sb: Any, token: int, block_size: int, columns: int) -> Any:
    """fp32 [tokens, columns >= b]: block maxima, the newest block forced, -inf beyond b."""
    tokens = limit_sb.shape[0]
    entries = scores_hbm.shape[1]
    blocks = ceil_div(entries, block_size)
    chunk_blocks = max(1, CHUNK_SCORES // block_size)
    best_sb = nl.ndarray((tokens, columns), dtype=nl.float32, buffer=nl.sbuf)
    if columns > blocks:
        nisa.memset(dst=best_sb[:, blocks:columns], value=float("-inf"))
    for block in range(0, blocks, chunk_blocks):
        here = min(chunk_blocks, blocks - block)
        first = block * block_size
        shown_sb = nl.ndarray((tokens, here, block_size), dtype=nl.float32, buffer=nl.sbuf)
        seen_sb = visible_mask(limit_sb, first, min(here * block_size, entries - first))
        flat = shown_sb.reshape((tokens, here * block_size))
        show_scores(scores_hbm, token, first, seen_sb, flat)
        nisa.tensor_reduce(
            dst=best_sb[:, block : block + here], op=nl.maximum, data=shown_sb, axis=2
        )
    _force_newest(best_sb[:, 0:blocks], limit_sb, block_size)
    return best_sb


def _force_newest(best: Any, limit_sb: Any, block_size: int) -> None:
    """The block with first < limit <= first + B scores above every other."""
    tokens, blocks = best.shape
    begin_sb = positions_row(tokens, blocks, 0, block_size)
    reaches_sb = nl.ndarray((tokens, blocks), dtype=nl.uint8, buffer=nl.sbuf)
    newest_sb = nl.ndarray((tokens, blocks), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=reaches_sb,
        data=begin_sb,
        op0=nl.add,
        operand0=float(block_size),
        op1=nl.greater_equal,
        operand1=limit_sb,
    )
    nisa.scalar_tensor_tensor(
        dst=newest_sb,
        data=begin_sb,
        op0=nl.less,
        operand0=limit_sb,
        op1=nl.multiply,
        operand1=reaches_sb,
    )
    nisa.tensor_copy_predicated(dst=best, src=_FORCED, predicate=newest_sb)


def _store_mask(kept_sb: Any, mask_hbm: Any, token: int, block_size: int) -> None:
    """Every entry of a kept block (1.0 in kept [tokens, >= b]) -> 1."""
    tokens = kept_sb.shape[0]
    entries = mask_hbm.shape[1]
    blocks = ceil_div(entries, block_size)
    chunk_blocks = max(1, CHUNK_SCORES // block_size)
    for block in range(0, blocks, chunk_blocks):
        here = min(chunk_blocks, blocks - block)
        first = block * block_size
        width = min(here * block_size, entries - first)
        mask_sb = nl.ndarray((tokens, here, block_size), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_copy(
            dst=mask_sb,
            src=kept_sb[:, block : block + here].expand_dim(2).broadcast(2, block_size),
        )
        flat = mask_sb.reshape((tokens, here * block_size))
        nisa.dma_copy(
            dst=mask_hbm[token : token + tokens, first : first + width], src=flat[:, 0:width]
        )


@nki.jit
def candidate_blocks_kernel(
    scores_hbm: Any, visible_hbm: Any, block_size: int, num_blocks: int
) -> Any:
    """scores [T, n] fp32, visible [T, 1] fp32 -> mask [T, n] uint8."""
    num_tokens, entries = scores_hbm.shape
    blocks = ceil_div(entries, block_size)
    columns = max(blocks, ROUND)
    mask_hbm = nl.ndarray((num_tokens, entries), dtype=nl.uint8, buffer=nl.shared_hbm)
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for token in range(first_token, end_token, PARTITIONS):
        tokens = min(PARTITIONS, end_token - token)
        limit_sb = nl.ndarray((tokens, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=limit_sb, src=visible_hbm[token : token + tokens, :])
        best_sb = _block_scores(scores_hbm, limit_sb, token, block_size, columns)
        kept_sb = nl.ndarray((tokens, columns), dtype=nl.float32, buffer=nl.sbuf)
        if num_blocks >= blocks:
            nisa.memset(dst=kept_sb, value=float("-inf"))
        else:
            nisa.tensor_copy(dst=kept_sb, src=best_sb)
            remove_largest(kept_sb, num_blocks)
        nisa.tensor_tensor(dst=kept_sb, data1=kept_sb, data2=best_sb, op=nl.not_equal)
        _store_mask(kept_sb, mask_hbm, token, block_size)
    return mask_hbm


def candidate_blocks(
    scores: torch.Tensor,
    num_visible: torch.Tensor,
    block_size: int,
    num_blocks: int,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """mask [T, n] bool of scores [T, n] fp32 and num_visible [T].

    Raises:
        KernelError: UNSUPPORTED numerics, dtype, b > 8192 or B > 4096.
        UsageError: shapes that do not meet, block_size or num_blocks below 1.
    """
    op = "candidate_blocks"
    require_trn2(op, numerics)
    require_dtype(op, "scores", scores, torch.float32)
    require(scores.ndim == 2, op, f"scores has shape {tuple(scores.shape)}: it must be [T, n]")
    require_ids(op, "num_visible", num_visible, (scores.shape[0],))
    require(min(block_size, num_blocks) >= 1, op, "block_size and num_blocks are at least 1")
    require_limit(op, "block_size", block_size, CHUNK_SCORES)
    require_limit(op, "number of blocks", -(-scores.shape[1] // block_size), _MAX_BLOCKS)
    if scores.numel() == 0:
        return scores.new_empty(scores.shape, dtype=torch.bool)
    visible = num_visible.to(torch.float32).unsqueeze(1)
    mask = launch(candidate_blocks_kernel, scores, visible, block_size, num_blocks)
    return mask.to(torch.bool)
