"""Wrong shapes and dtypes, and empty operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.errors import UsageError
from harness.core.numerics import EXACT, QUANTISED
from harness.core.weights import QuantisedWeight
from references.op_table import TABLE
from tests.references.draws import fp4_weight, fp8_weight, normal, table_weight

X = normal(1, 3, 64)
FP8, FP4, TABLE_ROWS = fp8_weight(2, 32, 64), fp4_weight(3, 2, 8, 64), table_weight(4, 10, 32)
STREAMS = normal(5, 3, 4, 8)
FN, BASE, SCALE = normal(6, 24, 32), normal(7, 24), torch.ones(3)
Q, KV, SINK = normal(8, 3, 2, 16), normal(9, 5, 16), torch.zeros(2)
IDS = torch.zeros(3, 2, dtype=torch.int64)
SCORES, SEEN = normal(10, 3, 6), torch.tensor([1, 2, 3])
INTS = torch.zeros(3, 64, dtype=torch.int32)

WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("rms_norm", (X, X[0, :32], 1e-6), r"weight has shape \(32,\): it must be \(64,\)"),
    ("rms_norm", (INTS, X[0], 1e-6), "x has dtype"),
    ("rope", (X, X[:2, :4], X[:2, :4]), "does not meet"),
    ("rope", (X[:, :6], X[:, :4], X[:, :4]), "does not meet"),
    ("rope", (X, X[:, :4], X[:, :3]), "sin has shape"),
    ("linear_fp8", (X, FP8, "both"), "output is 'both'"),
    ("linear_fp8", (X[:, :32], FP8, "activation"), "K=64 but the activations have 32"),
    ("linear_fp8", (X, X, "activation"), "pass a QuantisedWeight"),
    ("linear_fp8", (X, FP4, "activation"), "layout 'fp4'"),
    ("linear_fp8", (X[0], FP8, "activation"), "must have 2 axes"),
    ("linear_fp4_grouped", (X, FP8, torch.tensor([1, 2])), "layout 'fp8_block'"),
    ("linear_fp4_grouped", (X, FP4, torch.tensor([1, 1])), "add up to the 3 rows"),
    ("linear_fp4_grouped", (X, FP4, torch.tensor([4, -1])), ">= 0"),
    ("linear_fp4_grouped", (X, FP4, torch.tensor([3])), "1 group sizes, 2 experts"),
    ("linear_fp4_grouped", (X, FP4, torch.tensor([1.0, 2.0])), "group_sizes has dtype"),
    ("linear_bf16", (X, X[:, :32], "activation"), "weight has shape"),
    ("swiglu", (X, X[:2], 10.0, None), "up has shape"),
    ("swiglu", (X, X, 0.0, None), "must be positive"),
    ("swiglu", (X, X, 10.0, X[:2, 0]), "route_weight has shape"),
    ("router", (X, FN, BASE, 2, 1.0, 1.0, True), "weight has shape"),
    ("router", (X, X, X[:, 0], 4, 1.0, 1.0, True), "not within 1..3"),
    ("sparse_attention", (Q, KV, IDS[:2], SINK, 1.0), "indices has shape"),
    ("sparse_attention", (Q, KV, IDS + 5, SINK, 1.0), "reach from 5 to 5, kv has 5 rows"),
    ("sparse_attention", (Q, KV, IDS - 2, SINK, 1.0), "reach from -2"),
    ("sparse_attention", (Q, KV[:0], IDS, SINK, 1.0), "no row to select"),
    ("sparse_attention", (Q, KV[:, :8], IDS, SINK, 1.0), "kv has shape"),
    ("sparse_attention", (Q, KV, IDS, SINK[:1], 1.0), "sink has shape"),
    ("sparse_attention", (Q, KV, IDS.float(), SINK, 1.0), "indices has dtype"),
    ("index_scores", (Q, KV[:, :8], X[:, :2]), "keys has shape"),
    ("index_scores", (Q, KV, X[:, :3]), "head_weights has shape"),
    ("candidate_blocks", (SCORES, SEEN[:2], 2, 2), "num_visible has shape"),
    ("candidate_blocks", (SCORES, SEEN, 0, 2), "at least 1"),
    ("topk_positions", (SCORES, SEEN, 0, None), "at least 1"),
    ("topk_positions", (SCORES, SEEN, 2, SCORES), "pass a bool mask"),
    ("topk_positions", (SCORES, SEEN, 2, SCORES[:, :3] > 0), "candidates has shape"),
    ("compress_pool", (X, X, 2), "multiple of 2"),
    ("compress_pool", (X, X[:, :8], 1), "gate has shape"),
    ("hc_mixes", (STREAMS, FN[:20], BASE, SCALE, 0.0, 1e-6, 2), "fn has shape"),
    ("hc_mixes", (STREAMS, FN, BASE, SCALE[:2], 0.0, 1e-6, 2), "scale has shape"),
    ("hc_mixes", (STREAMS, FN, BASE, SCALE, 0.0, 1e-6, 0), "iterations is 0"),
    ("hc_collapse", (STREAMS, X[:, :3]), "pre has shape"),
    ("hc_expand", (X[:, :7], STREAMS, X[:, :4], STREAMS[:, :, :4]), "y has shape"),
    ("hc_expand", (X[:, :8], STREAMS, X[:, :4], STREAMS), "comb has shape"),
    ("engram_lookup", (TABLE_ROWS, IDS + 10), "the table has 10 rows"),
    ("engram_lookup", (TABLE_ROWS, IDS - 1), "reach from -1"),
    ("engram_lookup", (FP8, IDS), "layout 'fp8_block'"),
    ("engram_gate", (STREAMS, STREAMS, X, FN, FN, 1e-6), "value has shape"),
    ("output_projection", (normal(1, 3, 3, 32), FP8, 2), "multiple of 2"),
    ("output_projection", (normal(1, 3, 2, 16), FP8, 1), "K=64"),
    ("vocab_argmax", (X[:, :0],), "no column"),
    ("vocab_topk", (X, 65), "not within 1..64"),
    ("vocab_topk", (INTS, 1), "dtype"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), WRONG)
def test_wrong_operands_are_refused(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TABLE.ops[name](*arguments, numerics=QUANTISED)
    assert str(caught.value).startswith(f"{name}: ") or "weight of layout" in str(caught.value)


NO_ROWS: list[tuple[str, Callable[[], tuple[Any, ...]], tuple[tuple[int, ...], ...]]] = [
    ("rms_norm", lambda: (X[:0], X[0], 1e-6), ((0, 64),)),
    ("rope", lambda: (Q[:0], X[:0, :4], X[:0, :4]), ((0, 2, 16),)),
    ("quantise_fp8", lambda: (X[:0],), ((0, 64), (0, 2))),
    ("quantise_fp4", lambda: (X[:0], 16), ((0, 32), (0, 4))),
    ("linear_fp8", lambda: (X[:0], FP8, "activation"), ((0, 32),)),
    ("linear_fp4_grouped", lambda: (X[:0], FP4, torch.tensor([0, 0])), ((0, 8),)),
    ("linear_bf16", lambda: (X[:0], X, "accumulate"), ((0, 3),)),
    ("swiglu", lambda: (X[:0], X[:0], 10.0, None), ((0, 64),)),
    ("router", lambda: (X[:0], X, X[:, 0], 2, 1.0, 1.0, True), ((0, 2), (0, 2))),
    ("sparse_attention", lambda: (Q[:0], KV, IDS[:0], SINK, 1.0), ((0, 2, 16),)),
    ("sparse_attention", lambda: (Q, KV, IDS[:, :0], SINK, 1.0), ((3, 2, 16),)),
    ("sparse_attention", lambda: (Q, KV[:0], IDS - 1, SINK, 1.0), ((3, 2, 16),)),
    ("index_scores", lambda: (Q[:0], KV, X[:0, :2]), ((0, 5),)),
    ("index_scores", lambda: (Q, KV[:0], X[:, :2]), ((3, 0),)),
    ("candidate_blocks", lambda: (SCORES[:, :0], SEEN * 0, 2, 2), ((3, 0),)),
    ("topk_positions", lambda: (SCORES[:, :0], SEEN * 0, 2, None), ((3, 0),)),
    ("topk_positions", lambda: (SCORES[:0], SEEN[:0], 2, None), ((0, 2),)),
    ("compress_pool", lambda: (X[:0], X[:0], 2), ((0, 64),)),
    ("hc_mixes", lambda: (STREAMS[:0], FN, BASE, SCALE, 0.0, 1e-6, 2), ((0, 4), (0, 4), (0, 4, 4))),
    ("hc_collapse", lambda: (STREAMS[:0], X[:0, :4]), ((0, 8),)),
    ("engram_lookup", lambda: (TABLE_ROWS, IDS[:0]), ((0, 64),)),
    ("vocab_argmax", lambda: (X[:0],), ((0,),)),
    ("vocab_topk", lambda: (X[:0], 3), ((0, 3), (0, 3))),
]


@pytest.mark.parametrize("numerics", [EXACT, QUANTISED], ids=lambda n: n.name)
@pytest.mark.parametrize(("name", "arguments", "shapes"), NO_ROWS)
def test_no_rows_give_no_rows(
    name: str,
    arguments: Callable[[], tuple[Any, ...]],
    shapes: tuple[tuple[int, ...], ...],
    numerics: Any,
) -> None:
    result = TABLE.ops[name](*arguments(), numerics=numerics)
    outputs = result if isinstance(result, tuple) else (result,)
    assert tuple(tuple(output.shape) for output in outputs) == shapes
    assert not any(bool(output.double().any()) for output in outputs if output.numel())


def test_a_table_whose_width_is_no_tile_is_refused() -> None:
    narrow = QuantisedWeight(
        torch.zeros(4, 40, dtype=torch.uint8), torch.zeros(4, 2, dtype=torch.uint8), "fp8_row"
    )
    with pytest.raises(UsageError, match="scale has shape"):
        TABLE.engram_lookup(narrow, torch.zeros(1, 1, dtype=torch.int64), numerics=QUANTISED)
