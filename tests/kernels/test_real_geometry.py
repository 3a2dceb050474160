"""Kernels at the model's real sizes: they fit SBUF's safe budget and write every output."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.core.weights import QuantisedWeight
from kernels.launch import counters, reset_counters
from kernels.op_table import TABLE
from tests.kernels.formulas import NUMERICS, fp4_weight, fp8_weight, normal

# nki.md §1.1: usable bytes differ between documents, 192 KiB a partition is safe in all.
_SAFE_SBUF_BYTES = 192 * 1024


def table_of(rows: int, width: int) -> QuantisedWeight:
    scale = torch.full((rows, width // 32), 120, dtype=torch.uint8)
    return QuantisedWeight(fp8_weight(rows, width).codes, scale, "fp8_row")


def indices_of(tokens: int, rows: int, entries: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-1, rows, (tokens, entries), generator=generator)


_PROBLEMS: dict[str, Callable[[int], tuple[object, ...]]] = {
    "rms_norm": lambda t: (normal(t, 5120), normal(5120), 1e-20),
    "rope": lambda t: (normal(t, 64, 512), torch.ones(t, 32), torch.zeros(t, 32)),
    "hc_mixes": lambda t: (
        normal(t, 4, 5120),
        torch.full((24, 20480), 0.001),
        torch.zeros(24),
        torch.ones(3),
        1e-20,
        1e-6,
        20,
    ),
    "hc_collapse": lambda t: (normal(t, 4, 5120), torch.ones(t, 4)),
    "hc_expand": lambda t: (
        normal(t, 5120),
        normal(t, 4, 5120),
        torch.ones(t, 4),
        torch.ones(t, 4, 4),
    ),
    "engram_gate": lambda t: (
        normal(t, 4, 5120),
        normal(t, 4, 5120, seed=1),
        normal(t, 5120),
        normal(4, 5120),
        normal(4, 5120),
        1e-20,
    ),
    "engram_lookup": lambda t: (table_of(5000, 256), indices_of(t, 5000, 24).clamp(min=0)),
    "router": lambda t: (
        normal(t, 5120),
        normal(384, 5120, scale=0.01),
        torch.zeros(384),
        6,
        1.5,
        1.0,
        True,
    ),
    "linear_bf16": lambda t: (normal(t, 5120), normal(512, 5120), "accumulate"),
    "linear_fp8": lambda t: (normal(t, 15360), fp8_weight(512, 15360), "activation"),
    "output_projection": lambda t: (normal(t, 16, 512), fp8_weight(2048, 4096), 2),
    "index_scores": lambda t: (normal(t, 32, 128), normal(2048, 128), torch.ones(t, 32)),
    "sparse_attention": lambda t: (
        normal(t, 16, 512),
        normal(9000, 512),
        indices_of(t, 9000, 640),
        torch.zeros(16),
        512**-0.5,
    ),
    "swiglu": lambda t: (normal(6 * t, 2304), normal(6 * t, 2304), 10.0, torch.ones(6 * t)),
    "compress_pool": lambda t: (normal(2 * t, 512).float(), normal(2 * t, 512).float(), 2),
    "vocab_argmax": lambda t: (normal(t, 129280).float(),),
    "vocab_topk": lambda t: (normal(t, 129280).float(), 50),
    "topk_positions": lambda t: (
        normal(t, 8448).float(),
        torch.full((t,), 8448),
        64,
        None,
    ),
    "candidate_blocks": lambda t: (normal(t, 32768).float(), torch.full((t,), 32768), 8, 256),
    "quantise_fp8": lambda t: (normal(t, 15360),),
    "quantise_fp4": lambda t: (normal(t, 512), 16),
}


def assert_runs(name: str, arguments: tuple[object, ...]) -> None:
    reset_counters()
    found = TABLE.ops[name](*arguments, numerics=NUMERICS)
    assert counters().num_launches == 1
    assert 0 < counters().sbuf_peak_bytes <= _SAFE_SBUF_BYTES
    for tensor in found if isinstance(found, tuple) else (found,):
        assert tensor.numel() > 0
        assert not tensor.is_floating_point() or torch.isfinite(tensor).all()


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 128])
@pytest.mark.parametrize("name", sorted(_PROBLEMS))
def test_fits_on_chip(name: str, tokens: int) -> None:
    assert_runs(name, _PROBLEMS[name](tokens))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[0, 1, 0, 0], [30, 0, 97, 1]])
def test_experts_fit_on_chip(sizes: list[int]) -> None:
    weight = fp4_weight(4, 2304, 5120)
    assert_runs("linear_fp4_grouped", (normal(sum(sizes), 5120), weight, torch.tensor(sizes)))
