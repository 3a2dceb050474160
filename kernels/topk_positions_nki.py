"""Top-k over cache positions: ids of the best visible (and candidate) entries, ascending.

Dimensions:
    T tokens, any number; n entries, <= 16384 (max8's reach); top_k, any, k = min(top_k, n).

Layouts: scores [T, n] fp32; num_visible fp32 [T, 1]; candidates uint8 [T, n] or absent;
positions int32 [T, k] (int64 after the host), padded with -1.
Accumulation: none; scores are compared as fp32. Positions pass fp32, exact below 2^24.
Expected error: none. Of equal scores the lower position is taken; -inf is never chosen.

Tiling (LNC=2: each core takes half of the tokens):
    for 128 tokens at a time, one a partition:
        scores of visible (and candidate) entries -> SBUF, -inf elsewhere, by predicated copy
        k/8 rounds of VectorE max8 + match_replace8 set the chosen to -inf (first positions first)
        chosen = what changed; key = (n - position) where chosen, else 0: distinct, exact
        k/8 rounds of max8 (+ match_replace8) give the keys in falling = positions in rising order
        position = n - key, or -1 where the key is 0

Refuses: numerics other than trn2's, scores that are not fp32, n > 16384. A visible score of +inf
or NaN is outside the contract.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.contract import (
    refuse,
    require,
    require_dtype,
    require_ids,
    require_limit,
    require_shape,
    require_trn2,
)
from kernels.launch import launch, nisa, nki, nl
from kernels.score_selection import (
    CHUNK_SCORES,
    MAX_SEARCH,
    ROUND,
    positions_row,
    remove_largest,
    show_scores,
    visible_mask,
)
from kernels.tiling import PARTITIONS, ceil_div, core_share

__all__ = ["topk_candidate_positions_kernel", "topk_positions", "topk_positions_kernel"]


def _chosen_keys(shown_sb: Any, entries: int, count: int) -> Any:
    """fp32 [tokens, F]: n - position where among the `count` best of shown, else 0."""
    tokens, columns = shown_sb.shape
    work_sb = nl.ndarray((tokens, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=work_sb, src=shown_sb)
    remove_largest(work_sb, count)
    nisa.tensor_tensor(dst=work_sb, data1=work_sb, data2=shown_sb, op=nl.not_equal)
    for first in range(0, columns, CHUNK_SCORES):
        width = min(CHUNK_SCORES, columns - first)
        chunk = work_sb[:, first : first + width]
        falling_sb = positions_row(tokens, width, entries - first, -1)
        nisa.tensor_tensor(dst=chunk, data1=chunk, data2=falling_sb, op=nl.multiply)
    return work_sb


def _rising_positions(key_sb: Any, entries: int, count: int) -> Any:
    """int32 [tokens, count]: n - key of the `count` largest keys, -1 where a key is 0."""
    tokens = key_sb.shape[0]
    rounds = ceil_div(count, ROUND)
    best_sb = nl.ndarray((tokens, rounds * ROUND), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(rounds):
        top = best_sb[:, i * ROUND : (i + 1) * ROUND]
        nisa.max8(dst=top, src=key_sb)
        if i + 1 < rounds:
            nisa.nc_match_replace8(dst=key_sb, data=key_sb, vals=top, imm=0.0)
    # n - key, and n - 0 - (n + 1) = -1 where there is none.
    none_sb = nl.ndarray((tokens, count), dtype=nl.float32, buffer=nl.sbuf)
    position_sb = nl.ndarray((tokens, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=none_sb,
        data=best_sb[:, 0:count],
        op0=nl.equal,
        operand0=0.0,
        op1=nl.multiply,
        operand1=float(entries + 1),
    )
    nisa.tensor_tensor(dst=none_sb, data1=best_sb[:, 0:count], data2=none_sb, op=nl.add)
    nisa.tensor_scalar(
        dst=position_sb,
        data=none_sb,
        op0=nl.multiply,
        operand0=-1.0,
        op1=nl.add,
        operand1=float(entries),
    )
    return position_sb


def _load_limits(visible_hbm: Any, token: int, tokens: int) -> Any:
    """fp32 [tokens, 1]."""
    limit_sb = nl.ndarray((tokens, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=limit_sb, src=visible_hbm[token : token + tokens, :])
    return limit_sb


@nki.jit
def topk_positions_kernel(scores_hbm: Any, visible_hbm: Any, count: int) -> Any:
    """scores [T, n] fp32, visible [T, 1] fp32 -> positions [T, count] int32."""
    num_tokens, entries = scores_hbm.shape
    columns = max(entries, ROUND)
    positions_hbm = nl.ndarray((num_tokens, count), dtype=nl.int32, buffer=nl.shared_hbm)
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for token in range(first_token, end_token, PARTITIONS):
        tokens = min(PARTITIONS, end_token - token)
        limit_sb = _load_limits(visible_hbm, token, tokens)
        shown_sb = nl.ndarray((tokens, columns), dtype=nl.float32, buffer=nl.sbuf)
        for first in range(0, columns, CHUNK_SCORES):
            seen_sb = visible_mask(limit_sb, first, min(CHUNK_SCORES, entries - first))
            end = min(columns, first + CHUNK_SCORES)
            show_scores(scores_hbm, token, first, seen_sb, shown_sb[:, first:end])
        key_sb = _chosen_keys(shown_sb, entries, count)
        position_sb = _rising_positions(key_sb, entries, count)
        nisa.dma_copy(dst=positions_hbm[token : token + tokens, :], src=position_sb)
    return positions_hbm


@nki.jit
def topk_candidate_positions_kernel(
    scores_hbm: Any, visible_hbm: Any, candidates_hbm: Any, count: int
) -> Any:
    """The same, restricted to entries whose byte in candidates [T, n] uint8 is 1 and not 0."""
    num_tokens, entries = scores_hbm.shape
    columns = max(entries, ROUND)
    positions_hbm = nl.ndarray((num_tokens, count), dtype=nl.int32, buffer=nl.shared_hbm)
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for token in range(first_token, end_token, PARTITIONS):
        tokens = min(PARTITIONS, end_token - token)
        limit_sb = _load_limits(visible_hbm, token, tokens)
        shown_sb = nl.ndarray((tokens, columns), dtype=nl.float32, buffer=nl.sbuf)
        for first in range(0, columns, CHUNK_SCORES):
            width = min(CHUNK_SCORES, entries - first)
            seen_sb = visible_mask(limit_sb, first, width)
            allowed_sb = nl.ndarray((tokens, width), dtype=nl.uint8, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=allowed_sb,
                src=candidates_hbm[token : token + tokens, first : first + width],
            )
            nisa.tensor_tensor(dst=seen_sb, data1=seen_sb, data2=allowed_sb, op=nl.bitwise_and)
            end = min(columns, first + CHUNK_SCORES)
            show_scores(scores_hbm, token, first, seen_sb, shown_sb[:, first:end])
        key_sb = _chosen_keys(shown_sb, entries, count)
        position_sb = _rising_positions(key_sb, entries, count)
        nisa.dma_copy(dst=positions_hbm[token : token + tokens, :], src=position_sb)
    return positions_hbm


def topk_positions(
    scores: torch.Tensor,
    num_visible: torch.Tensor,
    top_k: int,
    candidates: torch.Tensor | None,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """positions [T, min(top_k, n)] int64 of scores [T, n] fp32, ascending, padded with -1.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or n > 16384.
        UsageError: shapes that do not meet, top_k below 1, wrong dtypes.
    """
    op = "topk_positions"
    require_trn2(op, numerics)
    require_dtype(op, "scores", scores, torch.float32)
    require(scores.ndim == 2, op, f"scores has shape {tuple(scores.shape)}: it must be [T, n]")
    require_ids(op, "num_visible", num_visible, (scores.shape[0],))
    require(top_k >= 1, op, f"top_k is {top_k}: it must be at least 1")
    num_tokens, entries = scores.shape
    require_limit(op, "n", entries, MAX_SEARCH)
    if candidates is not None:
        require_shape(op, "candidates", candidates, tuple(scores.shape))
        if candidates.dtype != torch.bool:
            refuse(op, f"candidates has dtype {candidates.dtype}: pass a bool mask")
    count = min(top_k, entries)
    if num_tokens == 0 or entries == 0:
        return scores.new_empty((num_tokens, count), dtype=torch.int64)
    visible = num_visible.to(torch.float32).unsqueeze(1)
    if candidates is None:
        positions = launch(topk_positions_kernel, scores, visible, count)
    else:
        positions = launch(
            topk_candidate_positions_kernel, scores, visible, candidates.to(torch.uint8), count
        )
    return positions.to(torch.int64)
