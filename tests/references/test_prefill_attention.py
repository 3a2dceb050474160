"""Attention over shared rows: its own formula, its properties, and `sparse_attention`'s answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.core.numerics import EXACT, FAST, GOLDEN, QUANTISED, Numerics
from references.op_table import TABLE
from tests.references.draws import normal

SEEDS = st.integers(0, 2**16)


def problem(
    seed: int, tokens: int, heads: int, num_rows: int, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(tokens, num_rows, generator=generator) < 0.4
    return (
        normal(seed, tokens, heads, 16, dtype=dtype),
        normal(seed + 1, num_rows, 16, dtype=dtype),
        allowed,
        normal(seed + 2, heads),
    )


def as_indices(allowed: torch.Tensor) -> torch.Tensor:
    """The list of each row's open places, padded with -1."""
    places = torch.arange(allowed.shape[1]).expand_as(allowed)
    return torch.where(allowed, places, -1)


@pytest.mark.parametrize("numerics", [EXACT, QUANTISED, FAST, GOLDEN], ids=lambda n: n.name)
def test_it_is_a_softmax_over_the_allowed_rows_with_a_sink(numerics: Numerics) -> None:
    dtype = getattr(torch, numerics.activation)
    q, rows, allowed, sink = problem(3, 4, 2, 9, dtype)
    allowed[3] = False
    golden = np.zeros((4, 2, 16))
    for token in range(4):
        for head in range(2):
            total = math.exp(float(sink[head]))
            for row in range(9):
                if allowed[token, row]:
                    key = rows[row].double().numpy()
                    weight = math.exp(0.25 * float(key @ q[token, head].double().numpy()))
                    total += weight
                    golden[token, head] += weight * key
            golden[token, head] /= total
    ours = TABLE.prefill_attention(q, rows, allowed, sink, 0.25, numerics=numerics)
    assert ours.dtype == dtype
    assert not ours[3].any()
    tolerance = {"bfloat16": 2.0**-7, "float64": 1e-12}[numerics.activation]
    np.testing.assert_allclose(ours.double().numpy(), golden, atol=tolerance)


@given(SEEDS)
def test_it_equals_sparse_attention_over_the_same_rows(seed: int) -> None:
    q, rows, allowed, sink = problem(seed, 5, 3, 12)
    ours = TABLE.prefill_attention(q, rows, allowed, sink, 0.25, numerics=EXACT)
    theirs = TABLE.sparse_attention(q, rows, as_indices(allowed), sink, 0.25, numerics=EXACT)
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@given(SEEDS, st.integers(1, 4))
def test_rows_that_no_token_sees_are_never_read(seed: int, extra: int) -> None:
    q, rows, allowed, sink = problem(seed, 5, 3, 12)
    plain = TABLE.prefill_attention(q, rows, allowed, sink, 0.25, numerics=EXACT)
    hidden = torch.full((extra, 16), torch.nan, dtype=rows.dtype)
    closed = torch.zeros(5, extra, dtype=torch.bool)
    padded = TABLE.prefill_attention(
        q,
        torch.cat((hidden, rows, hidden)),
        torch.cat((closed, allowed, closed), 1),
        sink,
        0.25,
        numerics=EXACT,
    )
    assert torch.equal(padded, plain)


def test_tokens_in_slices_give_what_they_give_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    q, rows, allowed, sink = problem(1, 7, 2, 11)
    whole = TABLE.prefill_attention(q, rows, allowed, sink, 0.25, numerics=EXACT)
    monkeypatch.setattr("references.prefill_attention._SCORE_VALUES", 2 * 11 * 3)
    sliced = TABLE.prefill_attention(q, rows, allowed, sink, 0.25, numerics=EXACT)
    assert torch.allclose(sliced, whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("sink", [-torch.inf, -100.0, 100.0])
def test_a_token_that_sees_nothing_is_zero_whatever_the_sink(sink: float) -> None:
    q, rows, allowed, _ = problem(1, 3, 2, 6)
    allowed[1] = False
    sinks = torch.full((2,), sink)
    o = TABLE.prefill_attention(q, rows, allowed, sinks, 0.25, numerics=EXACT)
    assert not o[1].any()
    assert o.isfinite().all()
    none = TABLE.prefill_attention(q, rows, allowed & False, sinks, 0.25, numerics=EXACT)
    assert not none.any()


def test_empty_operands() -> None:
    q, rows, allowed, sink = problem(1, 3, 2, 6)
    for numerics in (EXACT, QUANTISED):
        no_token = TABLE.prefill_attention(q[:0], rows, allowed[:0], sink, 0.25, numerics=numerics)
        no_row = TABLE.prefill_attention(q, rows[:0], allowed[:, :0], sink, 0.25, numerics=numerics)
        assert no_token.shape == (0, 2, 16)
        assert no_row.shape == (3, 2, 16)
        assert not no_row.any()


def test_wrong_shapes_and_dtypes_are_refused() -> None:
    q, rows, allowed, sink = problem(1, 3, 2, 6)
    wrong = (
        ((q, rows[:, :8], allowed, sink, 1.0), "rows has shape"),
        ((q, rows, allowed[:2], sink, 1.0), "allowed has shape"),
        ((q, rows, allowed.int(), sink, 1.0), "a mask is bool"),
        ((q, rows, allowed, sink[:1], 1.0), "sink has shape"),
        ((q[0], rows, allowed, sink, 1.0), "must have 3 axes"),
    )
    for arguments, message in wrong:
        with pytest.raises(UsageError, match=message):
            TABLE.prefill_attention(*arguments, numerics=EXACT)
