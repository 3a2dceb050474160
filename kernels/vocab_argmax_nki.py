"""Greedy choice over the vocabulary by a cascade of maxima: the lowest id among the largest logits.

Dimensions:
    T tokens, any number; V vocabulary rows on this rank, 8 <= V < 2^24 (fewer are padded by the
    host with -inf); ids pass fp32, exact below 2^24.

Layouts: logits [T, V] fp32 row-major; ids int32 [T, 1] (int64 after the host).
Accumulation: none; logits are compared as fp32, never narrowed (a bf16 comparison would tie what
differs). Expected error: none, ids are exact. +0 and -0 are equal. NaN is refused by contract.

Tiling (LNC=2: each core takes half of the tokens; of one token, half of its partitions, and the
first core joins both (value, id) after a barrier):
    fold = largest c with c | V, V / c a multiple of 8, T * c <= 128: a row lies on c partitions
    for 128 // fold tokens, for <= 8192 logits of each partition:
        max8 -> the partition's maximum; nc_find_index8 -> its first index
        later chunks replace the running best only where strictly greater: the lowest id stays
    fold > 1: PE transposes maxima and ids to one partition [1, tokens, fold];
        row maximum, then the minimum id among the equal ones

Refuses: numerics other than trn2's, logits that are not fp32, V >= 2^24.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from harness.core.numerics import Numerics
from kernels.contract import require, require_dtype, require_limit, require_trn2
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, core_share, largest_fold

__all__ = ["vocab_argmax", "vocab_argmax_kernel"]

_MAX_VOCABULARY = (1 << 24) - 1
_CHUNK_LOGITS = 8192
# Above every id, and exact in fp32.
_NO_ID = float(1 << 24)


def _partition_best(logits_rows: Any, row: int, rows: int) -> Any:
    """(maximum, its first column) of each of `rows` rows [rows, W], both fp32 [rows, 1]."""
    width = logits_rows.shape[1]
    best_sb = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    for column in range(0, width, _CHUNK_LOGITS):
        # A tail shorter than 8 would be too short for max8: take the last 8 again instead.
        columns = max(8, min(_CHUNK_LOGITS, width - column))
        begin = min(column, width - columns)
        chunk_sb = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=chunk_sb, src=logits_rows[row : row + rows, begin : begin + columns])
        top_sb = nl.ndarray((rows, 8), dtype=nl.float32, buffer=nl.sbuf)
        where_sb = nl.ndarray((rows, 8), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.max8(dst=top_sb, src=chunk_sb)
        nisa.nc_find_index8(dst=where_sb, data=chunk_sb, vals=top_sb)
        if column == 0:
            nisa.tensor_copy(dst=best_sb[:, 0:1], src=top_sb[:, 0:1])
            nisa.tensor_copy(dst=best_sb[:, 1:2], src=where_sb[:, 0:1])
        else:
            _keep_better(best_sb, top_sb, where_sb, begin)
    return best_sb


def _keep_better(best_sb: Any, top_sb: Any, where_sb: Any, begin: int) -> None:
    """Replace (maximum, column) where this chunk's maximum is strictly greater."""
    rows = best_sb.shape[0]
    found_sb = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    greater_sb = nl.ndarray((rows, 1), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_copy(dst=found_sb[:, 0:1], src=top_sb[:, 0:1])
    nisa.tensor_scalar(
        dst=found_sb[:, 1:2], data=where_sb[:, 0:1], op0=nl.add, operand0=float(begin)
    )
    nisa.tensor_tensor(dst=greater_sb, data1=top_sb[:, 0:1], data2=best_sb[:, 0:1], op=nl.greater)
    nisa.tensor_copy_predicated(dst=best_sb, src=found_sb, predicate=greater_sb.broadcast(1, 2))


def _lowest_of_largest(value_sb: Any, id_sb: Any) -> Any:
    """(largest, lowest id with it) fp32 [1, tokens] of lists [1, tokens, n], both used up."""
    tokens, length = value_sb.shape[1], value_sb.shape[2]
    largest_sb = nl.ndarray((1, tokens), dtype=nl.float32, buffer=nl.sbuf)
    lowest_sb = nl.ndarray((1, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=largest_sb, op=nl.maximum, data=value_sb, axis=2)
    nisa.tensor_tensor(
        dst=value_sb,
        data1=value_sb,
        data2=largest_sb.expand_dim(2).broadcast(2, length),
        op=nl.not_equal,
    )
    nisa.scalar_tensor_tensor(
        dst=id_sb, data=value_sb, op0=nl.multiply, operand0=_NO_ID, op1=nl.add, operand1=id_sb
    )
    nisa.tensor_reduce(dst=lowest_sb, op=nl.minimum, data=id_sb, axis=2)
    return largest_sb, lowest_sb


def _best_across(best_sb: Any, tokens: int, width: int, first_id: int) -> Any:
    """(largest, lowest id) fp32 [1, tokens] over each token's partitions, `width` ids each."""
    rows = best_sb.shape[0]
    by_token = (1, tokens, rows // tokens)
    column_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    value_psum = nl.ndarray((1, rows), dtype=nl.float32, buffer=nl.psum)
    column_psum = nl.ndarray((1, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.tensor_copy(dst=column_sb, src=best_sb[:, 1:2])
    nisa.nc_transpose(dst=value_psum, data=best_sb[:, 0:1], engine=nisa.engine.tensor)
    nisa.nc_transpose(dst=column_psum, data=column_sb, engine=nisa.engine.tensor)
    value_sb = nl.ndarray(by_token, dtype=nl.float32, buffer=nl.sbuf)
    id_sb = nl.ndarray(by_token, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=value_sb, src=value_psum.reshape(by_token))
    # The id is the column plus the partition's first id.
    nisa.iota(
        dst=id_sb,
        pattern=[[0, tokens], [width, rows // tokens]],
        offset=first_id,
        channel_multiplier=0,
    )
    nisa.tensor_tensor(dst=id_sb, data1=column_psum.reshape(by_token), data2=id_sb, op=nl.add)
    return _lowest_of_largest(value_sb, id_sb)


def _store_ids(id_sb: Any, ids_hbm: Any) -> None:
    """Ids fp32 -> int32 in HBM, the same number of elements."""
    chosen_sb = nl.ndarray(id_sb.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=chosen_sb, src=id_sb)
    nisa.dma_copy(dst=ids_hbm, src=chosen_sb)


def _choose_for_tokens(logits_rows: Any, ids_hbm: Any, fold: int) -> None:
    """This core's tokens."""
    num_tokens = ids_hbm.shape[0]
    width = logits_rows.shape[1]
    ids_row = ids_hbm.reshape((1, num_tokens))
    first_token, my_tokens = core_share(num_tokens)
    tile_tokens = PARTITIONS // fold
    for token in range(first_token, first_token + my_tokens, tile_tokens):
        tokens = min(tile_tokens, first_token + my_tokens - token)
        best_sb = _partition_best(logits_rows, token * fold, tokens * fold)
        if fold > 1:
            _, lowest_sb = _best_across(best_sb, tokens, width, 0)
            _store_ids(lowest_sb, ids_row[:, token : token + tokens])
        else:
            _store_ids(best_sb[:, 1:2], ids_hbm[token : token + tokens, :])


def _choose_together(logits_rows: Any, ids_hbm: Any) -> None:
    """One token: each core takes half of the partitions' logits, the first core joins them."""
    fold, width = logits_rows.shape
    part_hbm = nl.ndarray((2, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    first, mine = core_share(fold)
    best_sb = _partition_best(logits_rows, first, mine)
    largest_sb, lowest_sb = _best_across(best_sb, 1, width, first * width)
    core = nl.program_id(0)
    nisa.dma_copy(dst=part_hbm[core : core + 1, 0:1], src=largest_sb)
    nisa.dma_copy(dst=part_hbm[core : core + 1, 1:2], src=lowest_sb)
    nisa.core_barrier(data=part_hbm, cores=(0, 1))
    if core == 0:
        value_sb = nl.ndarray((1, 1, 2), dtype=nl.float32, buffer=nl.sbuf)
        id_sb = nl.ndarray((1, 1, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=value_sb, src=part_hbm.ap(pattern=[[2, 1], [2, 2]], offset=0))
        nisa.dma_copy(dst=id_sb, src=part_hbm.ap(pattern=[[2, 1], [2, 2]], offset=1))
        _, chosen_sb = _lowest_of_largest(value_sb, id_sb)
        _store_ids(chosen_sb, ids_hbm)


@nki.jit
def vocab_argmax_kernel(logits_hbm: Any, fold: int) -> Any:
    """logits [T, V] fp32 -> ids [T, 1] int32; each row lies on `fold` partitions."""
    num_tokens, vocabulary = logits_hbm.shape
    ids_hbm = nl.ndarray((num_tokens, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    logits_rows = logits_hbm.reshape((num_tokens * fold, vocabulary // fold))
    if num_tokens == 1 and fold > 1 and nl.program_ndim() > 0:
        _choose_together(logits_rows, ids_hbm)
    else:
        _choose_for_tokens(logits_rows, ids_hbm, fold)
    return ids_hbm


def vocab_argmax(logits: torch.Tensor, *, numerics: Numerics) -> torch.Tensor:
    """ids [T] int64 of logits [T, V] fp32: the lowest id among the maxima.

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or V >= 2^24.
        UsageError: an empty vocabulary.
    """
    op = "vocab_argmax"
    require_trn2(op, numerics)
    require_dtype(op, "logits", logits, torch.float32)
    require(logits.ndim == 2, op, f"logits has shape {tuple(logits.shape)}: it must be [T, V]")
    require(logits.shape[1] > 0, op, "logits has no column")
    require_limit(op, "V", logits.shape[1], _MAX_VOCABULARY)
    num_tokens = logits.shape[0]
    if num_tokens == 0:
        return logits.new_empty((0,), dtype=torch.int64)
    if logits.shape[1] < 8:
        logits = functional.pad(logits, (0, 8 - logits.shape[1]), value=-torch.inf)
    fold = largest_fold(logits.shape[1], PARTITIONS // min(num_tokens, PARTITIONS), 8)
    return launch(vocab_argmax_kernel, logits, fold).squeeze(1).to(torch.int64)
