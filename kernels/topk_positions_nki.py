"""Top-k over cache positions: ids of the best visible (and candidate) entries, ascending.

Dimensions:
    T tokens, any number; n entries, <= 16384 (max8's reach); top_k, any, k = min(top_k, n).

Layouts: scores [T, n] fp32; num_visible fp32 [T, 1]; candidates uint8 [T, n] or absent;
positions int32 [T, k] (int64 after the host), padded with -1.
Accumulation: none; scores are compared as fp32. Positions pass fp32, exact below 2^24.
Expected error: none. Of equal scores the lower position is taken; -inf is never chosen.

Tiling (LNC=2: each core takes half of the tokens). Two ways; the host takes the one with fewer
VectorE cycles, so decode, and any k of hundreds, go across the partitions (`spreads_rows`):

  rows across the partitions, 8 tokens at a time                          (topk_bisection.py)
        scores [P, 8, F], entry p * F + f of a row on partition p; hidden ones below every score
        the k-th largest by its bits, 33 steps: VectorE compares and counts, a matmul with ones
        adds up the partitions and hands each the sum
        chosen = above it, and the first of its equals: a scan numbers them within a partition, a
        matmul with ones before the diagonal gives those of the partitions before
        DMA to one partition a token; GpSimd nonzero_with_count lists the chosen, padded with -1
    At 1 token, n = 4096, k = 512 an estimated 16 us of VectorE where the rounds below need 1.1 ms.

  rows on partitions, 128 tokens at a time:
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
    require,
    require_dtype,
    require_ids,
    require_limit,
    require_mask,
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
from kernels.topk_bisection import chosen_entries, prefix_mask, score_halves

__all__ = [
    "spreads_rows",
    "topk_candidate_positions_kernel",
    "topk_positions",
    "topk_positions_kernel",
    "topk_spread_candidates_kernel",
    "topk_spread_kernel",
]

# nonzero_with_count serves partitions 0, 16, ... 112.
_SPREAD_TOKENS = 8
_LISTED_PARTITION = 16
_SEARCH_STEPS = 33
_INSTRUCTION_CYCLES = 64


def spreads_rows(num_tokens: int, entries: int, count: int) -> bool:
    """Whether rows across the partitions cost VectorE fewer cycles than rows on partitions."""
    rounds = 4 * ceil_div(count, ROUND) * ceil_div(num_tokens, PARTITIONS)
    tokens = min(num_tokens, _SPREAD_TOKENS)
    a_step = 2 * tokens * ceil_div(entries, PARTITIONS) + 6 * _INSTRUCTION_CYCLES
    spread = _SEARCH_STEPS * ceil_div(num_tokens, _SPREAD_TOKENS) * a_step
    return spread < rounds * (max(entries, ROUND) + _INSTRUCTION_CYCLES)


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


def _load_spread(rows_hbm: Any, token: int, loaded_sb: Any) -> None:
    """Rows token, token + 1, ... of [T, n] across the partitions of loaded [P, G, F]."""
    entries = rows_hbm.shape[1]
    tokens, width = loaded_sb.shape[1], loaded_sb.shape[2]
    full, tail = entries // width, entries % width
    nisa.dma_copy(
        dst=loaded_sb[0:full, :, :],
        src=rows_hbm.ap(
            pattern=[[width, full], [entries, tokens], [1, width]], offset=token * entries
        ),
    )
    if tail > 0:
        nisa.dma_copy(
            dst=loaded_sb[full : full + 1, :, 0:tail],
            src=rows_hbm.ap(
                pattern=[[width, 1], [entries, tokens], [1, tail]],
                offset=token * entries + full * width,
            ),
        )


def _seen_spread(visible_hbm: Any, token: int, shape: Any, entries: int) -> Any:
    """uint8 [P, G, F]: 1 at entries below the token's limit (and below n)."""
    partitions, tokens, width = shape
    limit_sb = nl.ndarray((partitions, tokens), dtype=nl.float32, buffer=nl.sbuf)
    entry_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    seen_sb = nl.ndarray(shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=limit_sb, src=visible_hbm.ap(pattern=[[0, partitions], [1, tokens]], offset=token)
    )
    nisa.tensor_scalar(dst=limit_sb, data=limit_sb, op0=nl.minimum, operand0=float(entries))
    nisa.iota(dst=entry_sb, pattern=[[0, tokens], [1, width]], offset=0, channel_multiplier=width)
    nisa.tensor_tensor(
        dst=seen_sb,
        data1=entry_sb,
        data2=limit_sb.expand_dim(2).broadcast(2, width),
        op=nl.less,
    )
    return seen_sb


def _list_chosen(chosen_sb: Any, positions_hbm: Any, token: int) -> None:
    """positions [T, k] of tokens token, token + 1, ...: the places of ones, rising, then -1."""
    partitions, tokens, width = chosen_sb.shape
    entries = partitions * width
    lanes = _LISTED_PARTITION * (tokens - 1) + 1
    row_sb = nl.ndarray((lanes, entries), dtype=nl.float32, buffer=nl.sbuf)
    list_sb = nl.ndarray((lanes, entries + 1), dtype=nl.int32, buffer=nl.sbuf)
    for t in range(tokens):
        lane = t * _LISTED_PARTITION
        nisa.dma_copy(
            dst=row_sb[lane : lane + 1, :].reshape((1, partitions, width)),
            src=chosen_sb[:, t, :],
        )
    nisa.nonzero_with_count(dst=list_sb, src=row_sb, index_offset=0, padding_val=-1)
    for t in range(tokens):
        lane = t * _LISTED_PARTITION
        nisa.dma_copy(
            dst=positions_hbm[token + t : token + t + 1, :],
            src=list_sb[lane : lane + 1, 0 : positions_hbm.shape[1]],
        )


def _spread_positions(scores_hbm: Any, visible_hbm: Any, masks_hbm: Any, count: int) -> Any:
    """positions [T, count]; masks_hbm holds candidates, or nothing."""
    num_tokens, entries = scores_hbm.shape
    width = ceil_div(entries, PARTITIONS)
    partitions = ceil_div(entries, width)
    positions_hbm = nl.ndarray((num_tokens, count), dtype=nl.int32, buffer=nl.shared_hbm)
    before_sb = prefix_mask(partitions)
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for token in range(first_token, end_token, _SPREAD_TOKENS):
        shape = (partitions, min(_SPREAD_TOKENS, end_token - token), width)
        seen_sb = _seen_spread(visible_hbm, token, shape, entries)
        for mask_hbm in masks_hbm:
            allowed_sb = nl.ndarray(shape, dtype=nl.uint8, buffer=nl.sbuf)
            nisa.memset(dst=allowed_sb, value=0)
            _load_spread(mask_hbm, token, allowed_sb)
            nisa.tensor_tensor(dst=seen_sb, data1=seen_sb, data2=allowed_sb, op=nl.bitwise_and)
        scores_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=scores_sb, value=0.0)
        _load_spread(scores_hbm, token, scores_sb)
        upper_sb, lower_sb = score_halves(scores_sb, seen_sb)
        chosen_sb = chosen_entries(upper_sb, lower_sb, count, before_sb)
        _list_chosen(chosen_sb, positions_hbm, token)
    return positions_hbm


@nki.jit
def topk_spread_kernel(scores_hbm: Any, visible_hbm: Any, count: int) -> Any:
    """scores [T, n] fp32, visible [T, 1] fp32 -> positions [T, count] int32, rows spread."""
    return _spread_positions(scores_hbm, visible_hbm, (), count)


@nki.jit
def topk_spread_candidates_kernel(
    scores_hbm: Any, visible_hbm: Any, candidates_hbm: Any, count: int
) -> Any:
    """The same, restricted to entries whose byte in candidates [T, n] uint8 is 1 and not 0."""
    return _spread_positions(scores_hbm, visible_hbm, (candidates_hbm,), count)


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
        require_mask(op, "candidates", candidates, tuple(scores.shape))
    count = min(top_k, entries)
    if num_tokens == 0 or entries == 0:
        return scores.new_empty((num_tokens, count), dtype=torch.int64)
    visible = num_visible.to(torch.float32).unsqueeze(1)
    spread = spreads_rows(num_tokens, entries, count)
    if candidates is None:
        plain = topk_spread_kernel if spread else topk_positions_kernel
        positions = launch(plain, scores, visible, count)
    else:
        masked = topk_spread_candidates_kernel if spread else topk_candidate_positions_kernel
        positions = launch(masked, scores, visible, candidates.to(torch.uint8), count)
    return positions.to(torch.int64)
