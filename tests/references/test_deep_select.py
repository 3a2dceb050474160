"""The deep_select face against sorting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UsageError
from references import deep_select


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 30),
    count=st.integers(1, 12),
    order=st.sampled_from(["any", "value", "index"]),
)
def test_topk_equals_sorting(seed: int, n: int, count: int, order: str) -> None:
    generator = np.random.default_rng(seed)
    values = generator.integers(-3, 3, size=(4, n)).astype(np.float32)
    values[0, generator.integers(n)] = -np.inf
    end = generator.integers(0, n + 1, size=4)
    begin = np.minimum(generator.integers(0, n + 1, size=4), end)
    taken, ids = deep_select.topk(
        torch.from_numpy(values),
        count,
        sorted=order == "value",
        sorted_index=order == "index",
        begin=torch.from_numpy(begin),
        end=torch.from_numpy(end),
        idx_oob_fill_value=-1,
    )
    assert taken is not None
    for row in range(4):
        inside = range(int(begin[row]), int(end[row]))
        best = sorted(inside, key=lambda j: (-values[row, j], j))[:count]
        expected = best if order == "value" else sorted(best)
        fill = count - len(best)
        assert ids[row].tolist() == expected + [-1] * fill
        assert taken[row].tolist() == [*values[row, expected].tolist(), *[-math.inf] * fill]


def test_ids_get_their_offset_type_and_destination() -> None:
    values = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    out = torch.zeros(2, 2, dtype=torch.int32)
    nothing, ids = deep_select.topk(
        values,
        2,
        sorted=True,
        end=torch.tensor([3, 1]),
        indices_type=torch.int32,
        output_idx=out,
        output_idx_offset=torch.tensor([0, 100]),
        return_value=False,
    )
    assert nothing is None
    assert ids is out
    assert ids.tolist() == [[0, 2], [100, 2**31 - 1]]
    assert deep_select.get_stride_requirement() == (1, 1)


def test_nan_is_refused_only_where_it_counts() -> None:
    values = torch.tensor([[1.0, math.nan, 2.0]])
    _, ids = deep_select.topk(values, 1, end=torch.tensor([1]))
    assert ids.tolist() == [[0]]
    with pytest.raises(UsageError, match="NaN"):
        deep_select.topk(values, 1)
    _, ids = deep_select.topk(values, 1, abort_when_nan_found=False)
    assert ids.tolist() == [[1]], "NaN ranks first, as in torch.topk"


def test_wrong_operands_are_refused() -> None:
    values = torch.zeros(2, 3)
    with pytest.raises(UsageError, match="not within 1"):
        deep_select.topk(values, 0)
    with pytest.raises(UsageError, match="pass bfloat16 or float32"):
        deep_select.topk(values.double(), 1)
    with pytest.raises(UsageError, match="exclude each other"):
        deep_select.topk(values, 1, sorted=True, sorted_index=True)
    with pytest.raises(UsageError, match="end has shape"):
        deep_select.topk(values, 1, end=torch.tensor([1]))
    with pytest.raises(UsageError, match="output_idx has shape"):
        deep_select.topk(values, 1, output_idx=torch.zeros(2, 2, dtype=torch.int64))
