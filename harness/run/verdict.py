"""The checks on one op's outputs, in measurement.md §1's order, stopping at the first failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch

from harness.core.case import Tolerance
from harness.core.ops import OpSpec
from harness.core.results import OutputErrors
from harness.core.status import OpStatus
from harness.run.compare import compare_exact, compare_within_budget
from harness.run.tie_classes import RouterSelection

__all__ = ["Expected", "Outputs", "Verdict", "as_outputs", "judge_outputs", "needs_tolerance"]

Outputs = tuple[torch.Tensor, ...]

# Outputs that are copies of inputs: no arithmetic, no budget.
_COPIED = {("vocab_topk", "values")}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status with its one-line reason and the numbers behind it."""

    status: OpStatus
    message: str = ""
    errors: tuple[OutputErrors, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What the outputs are held against.

    Attributes:
        golden: float outputs in float64, the others as they are.
        baseline: the reference in the kernel's dtypes; its dtypes are the required ones.
        tolerances: output name -> budget, for every output that `needs_tolerance`.
        router: the scores behind a routing, for its tie classes; None for other ops.
    """

    spec: OpSpec
    golden: Outputs
    baseline: Outputs
    tolerances: Mapping[str, Tolerance]
    router: RouterSelection | None = None

    def defect(self) -> str:
        """Why nothing can be judged with this, in words; empty if it can."""
        if len(self.golden) != len(self.spec.outputs) or len(self.baseline) != len(self.golden):
            return f"the reference gives {len(self.golden)} outputs"
        for value, golden, baseline in zip(
            self.spec.outputs, self.golden, self.baseline, strict=True
        ):
            if golden.shape != baseline.shape:
                return f"golden and baseline of {value.name} differ in shape"
            if not needs_tolerance(self.spec, value.name):
                same = compare_exact(value.name, baseline, golden.to(baseline.dtype))
                if same.num_mismatched and self.router is None:
                    return (
                        f"golden and baseline of the exact output {value.name} differ at "
                        f"{same.worst_index}"
                    )
            elif _class_mismatch(baseline, golden):
                return f"the baseline of {value.name} overflows where its golden does not"
        return self.router.disagreement(self.golden) if self.router is not None else ""


def needs_tolerance(spec: OpSpec, output: str) -> bool:
    """Whether a budget judges this output: it is a float that is computed, not selected."""
    kind = next(value.kind for value in spec.outputs if value.name == output)
    return kind in ("act", "acc") and not spec.exact and (spec.name, output) not in _COPIED


def judge_outputs(outputs: object, expected: Expected) -> Verdict:
    """Number, shape, dtype, non-finite places, values. Inputs are the caller's last check."""
    message = _shape_fault(as_outputs(outputs), expected)
    if message:
        return Verdict(OpStatus.WRONG_SHAPE, message)
    tensors = cast(Outputs, as_outputs(outputs))
    for check in (_check_dtypes, _check_non_finite):
        verdict = check(tensors, expected)
        if verdict is not None:
            return verdict
    return _check_values(tensors, expected)


def as_outputs(outputs: object) -> tuple[object, ...]:
    """What an op returned, as a tuple."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def _shape_fault(outputs: tuple[object, ...], expected: Expected) -> str:
    names = [value.name for value in expected.spec.outputs]
    if len(outputs) != len(names):
        return f"{len(outputs)} outputs, {len(names)} expected ({', '.join(names)})"
    for name, output, golden in zip(names, outputs, expected.golden, strict=True):
        if not isinstance(output, torch.Tensor):
            return f"{name} is a {type(output).__name__}, not a tensor"
        if output.shape != golden.shape:
            return f"{name} has shape {tuple(output.shape)}, {tuple(golden.shape)} expected"
    return ""


def _check_dtypes(outputs: Outputs, expected: Expected) -> Verdict | None:
    for value, output, baseline in zip(
        expected.spec.outputs, outputs, expected.baseline, strict=True
    ):
        if output.dtype != baseline.dtype:
            message = f"{value.name} is {output.dtype}, {baseline.dtype} expected"
            return Verdict(OpStatus.WRONG_DTYPE, message)
    return None


def _check_non_finite(outputs: Outputs, expected: Expected) -> Verdict | None:
    for value, output, golden in zip(expected.spec.outputs, outputs, expected.golden, strict=True):
        mismatch = _class_mismatch(output, golden)
        if mismatch:
            return Verdict(OpStatus.NON_FINITE, f"{value.name}: {mismatch}")
    return None


def _class_mismatch(output: torch.Tensor, golden: torch.Tensor) -> str:
    """NaN, +inf and -inf as three sets of places; the golden's are those of its rounded value."""
    if not output.is_floating_point():
        return ""
    # A finite sum of both sides means that neither holds a special value: the common, fast case.
    if bool(torch.isfinite(output.sum(dtype=torch.float64) + golden.sum())) and bool(
        torch.isfinite(golden.to(output.dtype)).all()
    ):
        return ""
    rounded = golden.to(output.dtype)
    for label, is_class in (
        ("NaN", torch.isnan),
        ("+inf", torch.isposinf),
        ("-inf", torch.isneginf),
    ):
        found, wanted = is_class(output), is_class(rounded)
        differs = found ^ wanted
        if bool(differs.any()):
            index = tuple(differs.nonzero()[0].tolist())
            which = "unexpected" if bool(found[index]) else "missing"
            return f"{which} {label} at {index} ({int(differs.sum())} places differ)"
    return ""


def _check_values(outputs: Outputs, expected: Expected) -> Verdict:
    errors = _all_errors(outputs, expected)
    failed = [error for error in errors if not error.budget_ratio <= 1]
    if any(error.num_compared == 0 for error in errors):
        return Verdict(OpStatus.VACUOUS, "no element was compared")
    if failed:
        worst = max(failed, key=lambda error: error.budget_ratio)
        return Verdict(OpStatus.OUT_OF_TOLERANCE, _described(worst), errors)
    return Verdict(OpStatus.PASS, "", errors)


def _all_errors(outputs: Outputs, expected: Expected) -> tuple[OutputErrors, ...]:
    if expected.router is not None:
        return expected.router.compare(
            outputs, expected.golden, expected.baseline, expected.tolerances
        )
    return tuple(
        compare_within_budget(value.name, output, golden, baseline, expected.tolerances[value.name])
        if needs_tolerance(expected.spec, value.name)
        else compare_exact(value.name, output, golden.to(output.dtype))
        for value, output, golden, baseline in zip(
            expected.spec.outputs, outputs, expected.golden, expected.baseline, strict=True
        )
    )


def _described(error: OutputErrors) -> str:
    where = (
        f"at {error.worst_index}: {error.worst_kernel_value:.9g}, "
        f"golden {error.worst_golden_value:.9g}"
    )
    if error.num_mismatched is not None:
        return f"{error.name}: {error.num_mismatched} of {error.num_compared} differ, first {where}"
    ratio = f"{error.budget_ratio:.3g} times its budget in slice {error.worst_slice}"
    return f"{error.name}: {ratio}, {where}"
