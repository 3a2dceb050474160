"""Golden and baseline of a case: the reference in float64, and in the dtypes kernels work in."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from harness.core.case import Case, Tolerance
from harness.core.errors import UsageError
from harness.core.numerics import FAST, GOLDEN, Numerics
from harness.core.op_table import OpTable
from harness.run.inputs import Arguments
from harness.run.tie_classes import RouterSelection
from harness.run.verdict import Expected, as_outputs

__all__ = ["MissingGolden", "expected_of", "kernel_numerics"]


@dataclass(frozen=True, slots=True)
class MissingGolden:
    """Why there is nothing to judge with."""

    message: str
    detail: str = ""


def kernel_numerics(case: Case, fp8_max: int | None) -> Numerics:
    """FAST on the case's activation dtype and the grid the kernels need.

    Raises:
        UsageError: no kernel works in this activation dtype, or on this grid.
    """
    grid = fp8_max or FAST.fp8_max
    if case.dtype not in ("bfloat16", "float32"):
        raise UsageError(f"{case.case_id}: dtype {case.dtype!r}; choose bfloat16 or float32")
    if grid not in (240, 448):
        raise UsageError(f"{case.case_id}: fp8_max {grid}; choose 240 or 448")
    return Numerics(
        FAST.name,
        "bfloat16" if case.dtype == "bfloat16" else "float32",
        FAST.accumulate,
        quantise=FAST.quantise,
        fp8_max=240 if grid == 240 else 448,
    )


def expected_of(
    case: Case,
    arguments: Arguments,
    reference: OpTable,
    tolerances: Mapping[str, Tolerance],
    numerics: Numerics,
) -> Expected | MissingGolden:
    """Evaluate the reference twice, on contiguous copies of the arguments.

    The golden runs under GOLDEN on the kernel's fp8 grid, the baseline under the kernel's own
    numerics, both on the same already rounded values.
    """
    op = reference.ops.get(case.op)
    if op is None:
        return MissingGolden(f"the reference table has no op {case.op}")
    golden_numerics = replace(GOLDEN, fp8_max=numerics.fp8_max)
    try:
        golden = _tensors(op(*arguments.in_float64().positional(), numerics=golden_numerics))
        baseline = _tensors(op(*arguments.contiguous().positional(), numerics=numerics))
    except Exception as error:
        detail = "".join(traceback.format_exception(error))
        return MissingGolden(f"the golden could not be computed: {error!r}", detail)
    widened = tuple(t.double() if t.is_floating_point() else t for t in golden)
    router = RouterSelection.of(arguments) if case.op == "router" else None
    return Expected(arguments.spec, widened, baseline, _budgets(arguments, tolerances), router)


def _budgets(arguments: Arguments, tolerances: Mapping[str, Tolerance]) -> dict[str, Tolerance]:
    """Output -> budget; `<output>.<mode>` wins where the op's `output` argument names that mode."""
    mode = arguments.values.get("output")
    plain = {name: budget for name, budget in tolerances.items() if "." not in name}
    return {name: tolerances.get(f"{name}.{mode}", budget) for name, budget in plain.items()}


def _tensors(outputs: object) -> tuple[torch.Tensor, ...]:
    values = as_outputs(outputs)
    wrong = [type(value).__name__ for value in values if not isinstance(value, torch.Tensor)]
    if wrong:
        raise TypeError(f"the reference returned a {wrong[0]}")
    return tuple(value for value in values if isinstance(value, torch.Tensor))
