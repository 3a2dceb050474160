"""Greedy choice over the vocabulary by a cascade of maxima: the lowest id among the largest logits.

Dimensions:
    T tokens, any number; V vocabulary rows on this rank, 8 <= V < 2^24 (fewer are padded by the
    host with -inf); ids pass fp32, exact below 2^24.

Layouts: logits [T, V] fp32 row-major; ids int32 [T, 1] (int64 after the host).
Accumulation: none; logits are compared as fp32, never narrowed (a bf16 comparison would tie what
differs). Expected error: none, ids are exact. +0 and -0 are equal. NaN is refused by contract.

Tiling (LNC=2: each core takes half of the tokens; one token: the first core):
    fold = largest c with c | V, V / c a multiple of 8, T * c <= 128: a row lies on c partitions
    for 128 // fold tokens, for <= 8192 logits of each partition:
        max8 -> the partition's maximum; nc_find_index8 -> its first index
        later chunks replace the running best only where strictly greater: the lowest id stays
    fold > 1: PE transposes maxima and ids to one partition [1, tokens, fold];
        row maximum, then the minimum id among the equal ones
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


def _best_across(best_sb: Any, tokens: int, fold: int, width: int) -> Any:
    """int32 [1, tokens]: lowest id among the largest of each token's `fold` partitions."""
    rows = tokens * fold
    column_sb = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    value_psum = nl.ndarray((1, rows), dtype=nl.float32, buffer=nl.psum)
    column_psum = nl.ndarray((1, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.tensor_copy(dst=column_sb, src=best_sb[:, 1:2])
    nisa.nc_transpose(dst=value_psum, data=best_sb[:, 0:1], engine=nisa.engine.tensor)
    nisa.nc_transpose(dst=column_psum, data=column_sb, engine=nisa.engine.tensor)
    by_token = (1, tokens, fold)
    value_sb = nl.ndarray(by_token, dtype=nl.float32, buffer=nl.sbuf)
    id_sb = nl.ndarray(by_token, dtype=nl.float32, buffer=nl.sbuf)
    largest_sb = nl.ndarray((1, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=value_sb, src=value_psum.reshape(by_token))
    # The id is the column plus the partition's first id.
    nisa.iota(dst=id_sb, pattern=[[0, tokens], [width, fold]], offset=0, channel_multiplier=0)
    nisa.tensor_tensor(dst=id_sb, data1=column_psum.reshape(by_token), data2=id_sb, op=nl.add)
    nisa.tensor_reduce(dst=largest_sb, op=nl.maximum, data=value_sb, axis=2)
    nisa.tensor_tensor(
        dst=value_sb,
        data1=value_sb,
        data2=largest_sb.expand_dim(2).broadcast(2, fold),
        op=nl.not_equal,
    )
    nisa.scalar_tensor_tensor(
        dst=id_sb, data=value_sb, op0=nl.multiply, operand0=_NO_ID, op1=nl.add, operand1=id_sb
    )
    chosen_sb = nl.ndarray((1, tokens), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=chosen_sb, op=nl.minimum, data=id_sb, axis=2)
    return chosen_sb


@nki.jit
def vocab_argmax_kernel(logits_hbm: Any, fold: int) -> Any:
    """logits [T, V] fp32 -> ids [T, 1] int32; each row lies on `fold` partitions."""
    num_tokens, vocabulary = logits_hbm.shape
    width = vocabulary // fold
    ids_hbm = nl.ndarray((num_tokens, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    ids_row = ids_hbm.reshape((1, num_tokens))
    logits_rows = logits_hbm.reshape((num_tokens * fold, width))
    first_token, my_tokens = core_share(num_tokens)
    tile_tokens = PARTITIONS // fold
    for token in range(first_token, first_token + my_tokens, tile_tokens):
        tokens = min(tile_tokens, first_token + my_tokens - token)
        best_sb = _partition_best(logits_rows, token * fold, tokens * fold)
        if fold > 1:
            chosen_sb = _best_across(best_sb, tokens, fold, width)
            nisa.dma_copy(dst=ids_row[:, token : token + tokens], src=chosen_sb)
        else:
            chosen_sb = nl.ndarray((tokens, 1), dtype=nl.int32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=chosen_sb, src=best_sb[:, 1:2])
            nisa.dma_copy(dst=ids_hbm[token : token + tokens, :], src=chosen_sb)
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
