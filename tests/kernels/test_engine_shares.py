"""What dequantisation and PSUM copies cost is shared between the engines that can do it."""

from __future__ import annotations

import pytest

from harness.core.case import Case
from harness.run.golden import kernel_numerics
from harness.run.inputs import build_inputs
from kernels.interpreter.nki import last_launch
from kernels.op_table import TABLE


def busy_us(op: str, axes: dict[str, int]) -> dict[str, float]:
    """The interpreter's estimate of each engine, in one launch on one core."""
    case = Case(op, axes)
    arguments = build_inputs(case, fp8_max=240)
    TABLE.ops[op](*arguments.positional(), numerics=kernel_numerics(case, 240))
    summary = last_launch()
    assert summary is not None
    return {name: use.estimated_ns / 1e3 for name, use in summary.engines.items()}


@pytest.mark.parametrize(
    ("op", "axes", "helper", "vector_limit_us"),
    [  # On VectorE alone: 14.9, 8.8, 77 and 22.3 us.
        ("linear_fp8", {"T": 1, "N": 320, "K": 5120}, "gpsimd", 9.0),
        ("output_projection", {"T": 1, "H": 8, "D": 512, "G": 1, "L": 256}, "gpsimd", 5.0),
        ("linear_fp4_grouped", {"T": 2, "E": 2, "N": 512, "K": 5120}, "gpsimd", 40.0),
        ("sparse_attention", {"T": 4, "H": 64, "D": 512, "n": 1024, "M": 640}, "scalar", 14.0),
    ],
)
def test_vector_has_help(
    op: str, axes: dict[str, int], helper: str, vector_limit_us: float
) -> None:
    busy = busy_us(op, axes)
    assert busy["vector"] <= vector_limit_us
    assert 0.35 * busy["vector"] < busy[helper] < busy["vector"]


def test_prompt_tokens_that_share_their_rows_cost_a_fraction_of_gathering_them() -> None:
    tokens, rows = 128, 640
    shared = busy_us("prefill_attention", {"T": tokens, "H": 1, "D": 512, "N": rows})
    gathered = busy_us("sparse_attention", {"T": 16, "H": 1, "D": 512, "n": rows, "M": rows})
    assert 20 * max(shared.values()) < max(gathered.values()) * tokens / 16
