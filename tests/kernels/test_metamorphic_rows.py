"""Every op that works row by row: rows permuted, a batch split, rows of padding beside it.

The inputs are those of the suites' builder; which arguments carry a row a token is read off the
signature sheet. No golden is used.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.case import Case
from harness.core.ops import OP_SHEET
from harness.run.golden import kernel_numerics
from harness.run.inputs import build_inputs
from kernels.launch import backend_selected, lnc_selected
from kernels.op_table import TABLE

PROPERTY = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
ROWS = st.sampled_from([2, 3, 9, 34, 130])
CORES = st.sampled_from([1, 2])
SEEDS = st.integers(0, 2**16)
AXES: dict[str, dict[str, int]] = {
    "rms_norm": {"d": 256},
    "rope": {"H": 2, "D": 64, "R": 16},
    "quantise_fp8": {"K": 64},
    "dequantise_fp8": {"K": 64},
    "quantise_fp4": {"K": 64},
    "dequantise_fp4": {"K": 64},
    "linear_fp8": {"N": 64, "K": 128},
    "linear_bf16": {"N": 48, "K": 160},
    "swiglu": {"I": 64},
    "router": {"d": 64, "E": 16},
    "sparse_attention": {"H": 2, "D": 32, "n": 40, "M": 20},
    "prefill_attention": {"H": 2, "D": 32, "N": 140},
    "index_scores": {"h": 4, "x": 32, "n": 70},
    "candidate_blocks": {"n": 70},
    "topk_positions": {"n": 70},
    "hc_mixes": {"m": 4, "d": 32},
    "hc_collapse": {"m": 4, "d": 32},
    "hc_expand": {"m": 4, "d": 32},
    "engram_lookup": {"F": 3, "W": 32, "rows": 20},
    "engram_gate": {"m": 4, "d": 32},
    "output_projection": {"H": 4, "D": 32, "G": 2, "L": 32},
    "vocab_argmax": {"V": 96},
    "vocab_topk": {"V": 96},
    "linear_fp4_grouped": {"E": 4, "N": 40, "K": 64},
    "compress_pool": {"D": 96},
}
# Their rows depend on one another: sorted by expert, grouped by ratio. See test_metamorphic_ops.
NOT_BY_ROW = {"linear_fp4_grouped", "compress_pool"}
OPS = sorted(set(AXES) - NOT_BY_ROW)
Values = dict[str, Any]


def inputs(op: str, rows: int, seed: int) -> Values:
    case = Case(op, {"T": rows, **AXES[op]}, seed=seed)
    return dict(build_inputs(case, fp8_max=240).values)


def carries_rows(op: str, name: str) -> bool:
    shape = next(value.shape for value in OP_SHEET[op].inputs if value.name == name)
    return shape.split()[:1] == ["T"]


def with_rows(op: str, values: Values, change: Any) -> Values:
    """The values with `change` made to each tensor that has a row a token."""
    return {
        name: change(value) if isinstance(value, torch.Tensor) and carries_rows(op, name) else value
        for name, value in values.items()
    }


def run(cores: int, op: str, values: Values) -> tuple[torch.Tensor, ...]:
    numerics = kernel_numerics(Case(op, {"T": 1, **AXES[op]}), 240)
    with backend_selected("interpret"), lnc_selected(cores):
        output = TABLE.ops[op](*values.values(), numerics=numerics)
    return output if isinstance(output, tuple) else (output,)


def assert_same(op: str, found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    """Equal bytes where the op is exact; else up to another order of fp32 sums."""
    for value, a, b in zip(OP_SHEET[op].outputs, found, wanted, strict=True):
        assert a.shape == b.shape
        if OP_SHEET[op].exact or not a.is_floating_point():
            assert torch.equal(a, b), value.name
            continue
        wide, other = a.double(), b.double()
        largest = other.abs().amax(-1, keepdim=True)
        if op.endswith("attention"):  # P is rounded about the maximum of other groups of keys
            assert bool(((wide - other).abs() <= 2.0**-6 * largest).all())
            continue
        relative = 2.0**-7 if a.dtype == torch.bfloat16 else 2.0**-18
        assert bool(((wide - other).abs() <= relative * other.abs() + 2.0**-14 * largest).all())
        if a.dtype == torch.bfloat16:
            assert float((a != b).double().mean()) <= 0.05 + 1 / a.numel()


def test_every_op_is_here() -> None:
    assert set(AXES) == set(OP_SHEET)


@pytest.mark.parametrize("op", OPS)
@PROPERTY
@given(rows=ROWS, seed=SEEDS, cores=CORES)
def test_permuted_rows_give_permuted_answers(op: str, rows: int, seed: int, cores: int) -> None:
    values = inputs(op, rows, seed)
    places = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    moved = run(cores, op, with_rows(op, values, lambda tensor: tensor[places]))
    assert_same(op, moved, tuple(out[places] for out in run(cores, op, values)))


@pytest.mark.parametrize("op", OPS)
@PROPERTY
@given(rows=ROWS, seed=SEEDS, cores=CORES, share=st.floats(0.01, 0.99))
def test_a_split_batch_gives_the_parts_of_the_whole(
    op: str, rows: int, seed: int, cores: int, share: float
) -> None:
    values = inputs(op, rows, seed)
    cut = min(rows - 1, max(1, int(rows * share)))
    parts = [
        run(cores, op, with_rows(op, values, lambda tensor, at=place: tensor[at]))
        for place in (slice(0, cut), slice(cut, rows))
    ]
    joined = tuple(torch.cat(both) for both in zip(*parts, strict=True))
    assert_same(op, joined, run(cores, op, values))


@pytest.mark.parametrize("op", OPS)
@PROPERTY
@given(rows=ROWS, seed=SEEDS, cores=CORES, padding=st.sampled_from([1, 2, 31, 129]))
def test_padding_of_any_amount_and_content_reaches_no_other_row(
    op: str, rows: int, seed: int, cores: int, padding: int
) -> None:
    values = inputs(op, rows, seed)
    other = inputs(op, padding, seed + 1)
    for scale in (0.0, 1.0, 2.0**40):

        def filled(name: str, tensor: torch.Tensor, factor: float = scale) -> torch.Tensor:
            extra = other[name]
            if tensor.is_floating_point():
                extra = (extra.float() * factor).to(tensor.dtype)
            return torch.cat((tensor, extra))

        padded = {
            name: filled(name, value)
            if isinstance(value, torch.Tensor) and carries_rows(op, name)
            else value
            for name, value in values.items()
        }
        found = tuple(out[:rows] for out in run(cores, op, padded))
        assert_same(op, found, run(cores, op, values))
