"""The budget of rms_norm tells fp32 statistics from bf16 ones, and leaves right ones alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.case import Case
from harness.core.numerics import Numerics
from harness.core.op_table import OpTable
from harness.core.status import OpStatus
from harness.run.judge import Judge
from references.op_table import TABLE
from suites.loader import load_op_suite

SUITE = load_op_suite("rms_norm")
CASES = tuple(replace(case, lnc=0, probe=False) for case in SUITE.cases_of("default"))


def _normed(x: torch.Tensor, mean_square: torch.Tensor, weight: torch.Tensor, eps: float) -> object:
    y = x.float() * torch.rsqrt(mean_square.float() + eps) * weight.float()
    return y.to(torch.bfloat16)


def _right(x: torch.Tensor, weight: torch.Tensor, eps: float, *, numerics: Numerics) -> object:
    """fp32 sums of pairs, an order of its own."""
    squares = x.float().square()
    pairs = squares[:, ::2].sum(1, keepdim=True) + squares[:, 1::2].sum(1, keepdim=True)
    return _normed(x, pairs / x.shape[1], weight, eps)


def _rounded_sum(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, numerics: Numerics
) -> object:
    total = x.float().square().sum(1, keepdim=True).to(torch.bfloat16)
    return _normed(x, total.float() / x.shape[1], weight, eps)


def _rounded_partial_sums(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, numerics: Numerics
) -> object:
    halves = [part.float().square().sum(1, keepdim=True) for part in x.tensor_split(2, dim=1)]
    total = sum(half.to(torch.bfloat16).float() for half in halves)
    assert isinstance(total, torch.Tensor)
    return _normed(x, total / x.shape[1], weight, eps)


def _rounded_accumulator(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, numerics: Numerics
) -> object:
    total = torch.zeros(len(x), 1, dtype=torch.bfloat16)
    for part in x.float().square().split(32, dim=1):
        total += part.sum(1, keepdim=True)
    return _normed(x, total.float() / x.shape[1], weight, eps)


def _statuses(op: object, cases: tuple[Case, ...]) -> list[OpStatus]:
    judge = Judge(TABLE, OpTable({"rms_norm": op}, 240), SUITE.tolerances, "fake")  # type: ignore[dict-item]
    return [judge.run(case).status for case in cases]


@pytest.mark.parametrize("wrong", [_rounded_sum, _rounded_partial_sums, _rounded_accumulator])
def test_statistics_that_pass_through_bf16_fail_half_of_the_cases(wrong: object) -> None:
    statuses = _statuses(wrong, CASES)
    assert statuses.count(OpStatus.OUT_OF_TOLERANCE) >= len(CASES) / 2


def test_right_statistics_raise_no_alarm_in_200_seeded_runs() -> None:
    drawn = tuple(replace(CASES[i % len(CASES)], seed=5000 + i) for i in range(200))
    assert set(_statuses(_right, drawn)) == {OpStatus.PASS}
