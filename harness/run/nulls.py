"""Null solutions: answers of someone who computed nothing. A tolerance that takes one is void."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from harness.core.status import OpStatus
from harness.run.inputs import Arguments
from harness.run.verdict import Expected, judge_outputs

__all__ = ["NullReport", "judge_nulls", "null_outputs"]

_FEWEST = 3  # zeros, permuted rows and doubling apply to every op's probe


@dataclass(frozen=True, slots=True)
class NullReport:
    """What the judge said to each null solution.

    Attributes:
        rejected: "output:null" -> whether it was rejected.
        defect: why this probe proves nothing; empty if it does.
    """

    rejected: Mapping[str, bool]
    defect: str = ""


def judge_nulls(expected: Expected, arguments: Arguments) -> NullReport:
    """Judge every null solution of every output, the other outputs being right.

    A null that equals its golden (all-zero output, equal rows) makes the case no probe: that is a
    defect of the suite, reported, never skipped.
    """
    rejected: dict[str, bool] = {}
    right = [_as_required(g, b) for g, b in zip(expected.golden, expected.baseline, strict=True)]
    for place, value in enumerate(expected.spec.outputs):
        for null, answer in null_outputs(right[place], arguments):
            name = f"{value.name}:{null}"
            if torch.equal(answer, right[place]):
                return NullReport(rejected, f"the golden of {value.name} equals its null {null!r}")
            outputs = (*right[:place], answer, *right[place + 1 :])
            rejected[name] = judge_outputs(outputs, expected).status is not OpStatus.PASS
    if len(rejected) < _FEWEST:
        return NullReport(rejected, f"only {len(rejected)} null solutions apply to this probe")
    accepted = [name for name, was_rejected in rejected.items() if not was_rejected]
    if accepted:
        return NullReport(rejected, f"the judge accepts the null solution {accepted[0]}")
    return NullReport(rejected)


def null_outputs(right: torch.Tensor, arguments: Arguments) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and answer of each null that this output's shape and dtype allow."""
    yield "zeros", torch.zeros_like(right)
    if right.shape[0] > 1:
        yield "rows permuted", right.roll(1, 0)
    if right.dtype is torch.bool:
        yield "inverted", ~right
        return
    yield "doubled", right * 2
    if not right.is_floating_point():
        return
    yield "mean", torch.full_like(right, float(right.double().mean()))
    for name, tensor in arguments.tensors():
        if tensor.shape == right.shape and tensor.is_floating_point():
            yield f"copy of {name}", tensor.to(right.dtype)


def _as_required(golden: torch.Tensor, baseline: torch.Tensor) -> torch.Tensor:
    """The golden in the dtype a kernel must return."""
    return golden.to(baseline.dtype)
