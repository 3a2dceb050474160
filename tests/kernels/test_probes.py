"""Probe kernels move their input whole, whatever the row size and the number of cores."""

from __future__ import annotations

import pytest
import torch

from kernels.launch import counters, lnc_selected, reset_counters
from kernels.probes import row_copy, row_copy_input


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("num_bytes", "row_bytes"), [(512, 4), (262144, 64), (524288, 4096)])
def test_the_copy_is_exact(lnc: int, num_bytes: int, row_bytes: int) -> None:
    x = row_copy_input(num_bytes)
    assert x.numel() * 4 == num_bytes
    with lnc_selected(lnc):
        reset_counters()
        assert torch.equal(row_copy(x, row_bytes), x)
        moved = counters().dma_bytes
    assert moved >= 2 * num_bytes


def test_more_than_a_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one tile"):
        row_copy_input(2 << 20)
