"""Engram rows on the bundled interpreter, bit for bit against loops over the table."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from harness.core.errors import KernelError, UsageError
from harness.core.numerics import FAST
from harness.core.weights import QuantisedWeight
from kernels.engram_lookup_nki import engram_lookup
from kernels.launch import counters, lnc_selected, reset_counters
from tests.kernels.formulas import NUMERICS, fp8_weight, layouts_of


def table_of(rows: int, width: int) -> QuantisedWeight:
    generator = torch.Generator().manual_seed(3)
    scale = torch.randint(100, 140, (rows, width // 32), generator=generator)
    return QuantisedWeight(fp8_weight(rows, width).codes, scale.to(torch.uint8), "fp8_row")


def row_values(table: QuantisedWeight, row: int) -> np.ndarray:
    stored = table.codes[row].numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    out = []
    for block, byte in zip(stored.reshape(-1, 32), table.scale[row].tolist(), strict=True):
        if np.abs(block).max() > 240:
            block = 2 * (block / 2).astype(ml_dtypes.float8_e4m3).astype(np.float64)
        out.append(block * 2.0 ** (byte - 127))
    return np.concatenate(out)


def ids_of(tokens: int, fields: int, rows: int) -> torch.Tensor:
    return torch.randint(0, rows, (tokens, fields), generator=torch.Generator().manual_seed(1))


def assert_exact(table: QuantisedWeight, ids: torch.Tensor) -> None:
    e = engram_lookup(table, ids, numerics=NUMERICS)
    want = np.stack([np.concatenate([row_values(table, int(i)) for i in row]) for row in ids])
    assert e.dtype == torch.bfloat16
    assert np.array_equal(e.double().numpy(), want)


@pytest.mark.parametrize(
    ("tokens", "fields"), [(1, 1), (1, 6), (21, 6), (64, 2), (127, 1), (129, 1)]
)
@pytest.mark.parametrize("width", [32, 96])
def test_exact_at_tile_borders(tokens: int, fields: int, width: int) -> None:
    assert_exact(table_of(50, width), ids_of(tokens, fields, 50))


def test_first_and_last_row_and_repeats() -> None:
    assert_exact(table_of(50, 32), torch.tensor([[0, 49, 49, 0, 7, 7]]))


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed"])
def test_layouts_of_ids_and_an_untouched_table(layout: str) -> None:
    table, ids = table_of(50, 64), ids_of(5, 6, 50)
    codes = table.codes.clone()
    e = engram_lookup(table, layouts_of(ids)[layout], numerics=NUMERICS)
    assert torch.equal(e, engram_lookup(table, ids, numerics=NUMERICS))
    assert torch.equal(table.codes, codes)


def test_two_cores_give_the_bytes_of_one() -> None:
    with lnc_selected(2):
        assert_exact(table_of(50, 64), ids_of(5, 3, 50))


def test_no_rows_need_no_launch() -> None:
    reset_counters()
    assert engram_lookup(table_of(5, 32), ids_of(0, 6, 5), numerics=NUMERICS).shape == (0, 192)
    assert counters().num_launches == 0


def test_what_is_refused() -> None:
    table = table_of(50, 32)
    with pytest.raises(UsageError, match="the table has 50 rows"):
        engram_lookup(table, torch.tensor([[50]]), numerics=NUMERICS)
    with pytest.raises(UsageError, match="takes 'fp8_row'"):
        engram_lookup(fp8_weight(32, 32), torch.tensor([[0]]), numerics=NUMERICS)
    with pytest.raises(KernelError) as found:
        engram_lookup(table, torch.tensor([[0]]), numerics=FAST)
    assert found.value.status == "UNSUPPORTED"
