"""Top-k over the vocabulary in rotating tiles: falling values, of equals the lowest id first.

Dimensions:
    T tokens, any number; V vocabulary rows on this rank, 8 <= V < 2^24 (fewer are padded by the
    host); top_k k, <= 1024 and <= V; k8 = k rounded up to 8.

Layouts: logits [T, V] fp32 row-major; values fp32 [T, k]; ids int32 [T, k] (int64 after the host).
Accumulation: none; fp32 comparisons, ids pass fp32, exact below 2^24.
Expected error: none; values and ids are exact. -inf counts as the lowest finite number while
words are ranked (a removed word is -inf), and is handed out as -inf again; a logit of exactly
-3.4028235e38 becomes -inf, too. NaN is refused by contract.

Tiling (LNC=2: each core takes half of the tokens; of one token, half of its partitions, and the
first core joins both lists after a barrier):
    fold = largest c with c | V, V / c >= 2 k8, T * c <= 128, c * k8 <= 8192
    for 128 // fold tokens: rotate over tiles of <= 8192 logits of each partition:
        [running top k8 | tile]: k8/8 rounds of max8 + find_index8 + match_replace8
        ids follow by a GpSimd gather; the running ones stand first, so ties keep the lower id
    fold > 1: SBUF-to-SBUF DMA puts a token's c lists on one partition, lower ids first; once more

Refuses: numerics other than trn2's, logits that are not fp32, V >= 2^24, top_k above 1024.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_limit, require_trn2
from kernels.launch import launch_many, nisa, nki, nl
from kernels.score_selection import ROUND
from kernels.tiling import PARTITIONS, ceil_div, core_share

__all__ = ["vocab_topk", "vocab_topk_kernel"]

_MAX_VOCABULARY = (1 << 24) - 1
_MAX_TOP_K = 1024
_TILE_LOGITS = 8192
_MERGED_ELEMENTS = 8192
_LOWEST = -3.4028234663852886e38


def _ranked(value_sb: Any, id_sb: Any, count: int) -> Any:
    """(values, ids) fp32 [rows, count] of the largest; value_sb [rows, F >= 8] is used up."""
    rows = value_sb.shape[0]
    best_sb = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
    where_sb = nl.ndarray((rows, count), dtype=nl.uint32, buffer=nl.sbuf)
    best_id_sb = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
    # Zeros of both signs are equal to max8: the values themselves come from an untouched copy.
    kept_sb = nl.ndarray(value_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=kept_sb, src=value_sb)
    for begin in range(0, count, ROUND):
        top = nl.ndarray((rows, ROUND), dtype=nl.float32, buffer=nl.sbuf)
        nisa.max8(dst=top, src=value_sb)
        nisa.nc_find_index8(dst=where_sb[:, begin : begin + ROUND], data=value_sb, vals=top)
        if begin + ROUND < count:
            nisa.nc_match_replace8(dst=value_sb, data=value_sb, vals=top, imm=float("-inf"))
    nisa.nc_n_gather(dst=best_sb, data=kept_sb, indices=where_sb)
    nisa.nc_n_gather(dst=best_id_sb, data=id_sb, indices=where_sb)
    return best_sb, best_id_sb


def _partition_lists(logits_rows: Any, row: int, rows: int, count: int) -> Any:
    """(values, columns) fp32 [rows, count]: the largest of each row of logits [R, W]."""
    width = logits_rows.shape[1]
    best_sb, best_id_sb = None, None
    for column in range(0, width, _TILE_LOGITS):
        columns = min(_TILE_LOGITS, width - column)
        kept = 0 if column == 0 else count
        value_sb = nl.ndarray((rows, kept + columns), dtype=nl.float32, buffer=nl.sbuf)
        id_sb = nl.ndarray((rows, kept + columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(
            dst=value_sb[:, kept : kept + columns],
            src=logits_rows[row : row + rows, column : column + columns],
        )
        fresh = value_sb[:, kept : kept + columns]
        nisa.tensor_scalar(dst=fresh, data=fresh, op0=nl.maximum, operand0=_LOWEST)
        nisa.iota(
            dst=id_sb[:, kept : kept + columns],
            pattern=[[1, columns]],
            offset=column,
            channel_multiplier=0,
        )
        if kept > 0:
            nisa.tensor_copy(dst=value_sb[:, 0:kept], src=best_sb)
            nisa.tensor_copy(dst=id_sb[:, 0:kept], src=best_id_sb)
        best_sb, best_id_sb = _ranked(value_sb, id_sb, count)
    return best_sb, best_id_sb


def _merged(best_sb: Any, best_id_sb: Any, tokens: int, width: int, first_id: int) -> Any:
    """(values, ids) fp32 [tokens, count] of lists [tokens * fold, count] of columns.

    A partition holds `width` ids; first_id is the first of a token's first partition here.
    """
    count = best_sb.shape[1]
    fold = best_sb.shape[0] // tokens
    shape = (tokens, fold, count)
    value_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    id_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    first_id_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=value_sb, src=best_sb)
    nisa.dma_copy(dst=id_sb, src=best_id_sb)
    nisa.iota(
        dst=first_id_sb,
        pattern=[[width, fold], [0, count]],
        offset=first_id,
        channel_multiplier=0,
    )
    nisa.tensor_tensor(dst=id_sb, data1=id_sb, data2=first_id_sb, op=nl.add)
    flat = (tokens, fold * count)
    return _ranked(value_sb.reshape(flat), id_sb.reshape(flat), count)


def _store(best_sb: Any, best_id_sb: Any, values_hbm: Any, ids_hbm: Any) -> None:
    """Write [tokens, k] of lists [tokens, count], removed words as -inf."""
    tokens, count = best_sb.shape
    top_k = values_hbm.shape[1]
    masked_sb = nl.ndarray((tokens, count), dtype=nl.uint8, buffer=nl.sbuf)
    chosen_sb = nl.ndarray((tokens, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=masked_sb, data=best_sb, op0=nl.less_equal, operand0=_LOWEST)
    nisa.tensor_copy_predicated(dst=best_sb, src=float("-inf"), predicate=masked_sb)
    nisa.tensor_copy(dst=chosen_sb, src=best_id_sb)
    nisa.dma_copy(dst=values_hbm, src=best_sb[:, 0:top_k])
    nisa.dma_copy(dst=ids_hbm, src=chosen_sb[:, 0:top_k])


def _rank_tokens(logits_rows: Any, values_hbm: Any, ids_hbm: Any, fold: int, count: int) -> None:
    """This core's tokens."""
    width = logits_rows.shape[1]
    first_token, my_tokens = core_share(values_hbm.shape[0])
    end_token = first_token + my_tokens
    tile_tokens = PARTITIONS // fold
    for token in range(first_token, end_token, tile_tokens):
        tokens = min(tile_tokens, end_token - token)
        best_sb, best_id_sb = _partition_lists(logits_rows, token * fold, tokens * fold, count)
        if fold > 1:
            best_sb, best_id_sb = _merged(best_sb, best_id_sb, tokens, width, 0)
        end = token + tokens
        _store(best_sb, best_id_sb, values_hbm[token:end, :], ids_hbm[token:end, :])


def _rank_together(logits_rows: Any, values_hbm: Any, ids_hbm: Any, count: int) -> None:
    """One token: each core ranks half of the partitions' logits, the first core joins them."""
    fold, width = logits_rows.shape
    part_hbm = nl.ndarray((2, 2, count), dtype=nl.float32, buffer=nl.shared_hbm)
    first, mine = core_share(fold)
    best_sb, best_id_sb = _partition_lists(logits_rows, first, mine, count)
    best_sb, best_id_sb = _merged(best_sb, best_id_sb, 1, width, first * width)
    core = nl.program_id(0)
    nisa.dma_copy(dst=part_hbm[0, core : core + 1, :], src=best_sb)
    nisa.dma_copy(dst=part_hbm[1, core : core + 1, :], src=best_id_sb)
    nisa.core_barrier(data=part_hbm, cores=(0, 1))
    if core == 0:
        value_sb = nl.ndarray((1, 2 * count), dtype=nl.float32, buffer=nl.sbuf)
        id_sb = nl.ndarray((1, 2 * count), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=value_sb, src=part_hbm[0, :, :])
        nisa.dma_copy(dst=id_sb, src=part_hbm[1, :, :])
        best_sb, best_id_sb = _ranked(value_sb, id_sb, count)
        _store(best_sb, best_id_sb, values_hbm, ids_hbm)


@nki.jit
def vocab_topk_kernel(logits_hbm: Any, top_k: int, fold: int) -> Any:
    """logits [T, V] fp32 -> values fp32 [T, k], ids int32 [T, k]."""
    num_tokens, vocabulary = logits_hbm.shape
    count = ceil_div(top_k, ROUND) * ROUND
    values_hbm = nl.ndarray((num_tokens, top_k), dtype=nl.float32, buffer=nl.shared_hbm)
    ids_hbm = nl.ndarray((num_tokens, top_k), dtype=nl.int32, buffer=nl.shared_hbm)
    logits_rows = logits_hbm.reshape((num_tokens * fold, vocabulary // fold))
    if num_tokens == 1 and fold > 1 and nl.program_ndim() > 0:
        _rank_together(logits_rows, values_hbm, ids_hbm, count)
    else:
        _rank_tokens(logits_rows, values_hbm, ids_hbm, fold, count)
    return values_hbm, ids_hbm


def _fold(vocabulary: int, num_tokens: int, count: int) -> int:
    """Partitions a row of the vocabulary lies on."""
    limit = min(PARTITIONS // min(num_tokens, PARTITIONS), _MERGED_ELEMENTS // count)
    folds = [c for c in range(1, limit + 1) if vocabulary % c == 0 and vocabulary // c >= 2 * count]
    return folds[-1] if folds else 1


def vocab_topk(
    logits: torch.Tensor, top_k: int, *, numerics: Numerics
) -> tuple[torch.Tensor, torch.Tensor]:
    """values fp32 and ids int64 [T, top_k] of logits [T, V] fp32.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype, V >= 2^24 or top_k > 1024.
        UsageError: top_k outside 1..V.
    """
    op = "vocab_topk"
    require_trn2(op, numerics)
    require_dtype(op, "logits", logits, torch.float32)
    require(logits.ndim == 2, op, f"logits has shape {tuple(logits.shape)}: it must be [T, V]")
    num_tokens, vocabulary = logits.shape
    require(1 <= top_k <= vocabulary, op, f"top_k {top_k} is not within 1..{vocabulary}")
    require_limit(op, "V", vocabulary, _MAX_VOCABULARY)
    require_limit(op, "top_k", top_k, _MAX_TOP_K)
    if num_tokens == 0:
        return logits.new_empty((0, top_k)), logits.new_empty((0, top_k), dtype=torch.int64)
    if vocabulary < ROUND:
        logits = functional.pad(logits, (0, ROUND - vocabulary), value=-torch.inf)
    fold = _fold(logits.shape[1], num_tokens, -(-top_k // ROUND) * ROUND)
    values, ids = launch_many(vocab_topk_kernel, logits, top_k, fold)
    return values, ids.to(torch.int64)
