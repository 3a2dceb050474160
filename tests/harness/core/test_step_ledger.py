"""A ledger whose parts do not fit its steps cannot be made."""

from __future__ import annotations

import pytest

from harness.core.step_ledger import PartKind, StepLedger, StepPart


def _ledger(*self_ns: tuple[int, ...], step_ns: tuple[int, ...] = (100, 110)) -> StepLedger:
    parts = tuple(StepPart(f"p{n}", PartKind.REGION, 1, ns) for n, ns in enumerate(self_ns))
    return StepLedger("s", {}, step_ns, (), parts, (), "uncalibrated")


def test_parts_may_leave_a_residual() -> None:
    assert _ledger((60, 60), (40, 49)).status == "OK"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (((60, 60), (41, 49)), r"parts of step 0 take \[60, 41\] of 100 ns"),
        (((-1, 0),), "step 0 take"),
        (((60,),), "1 of 2 steps"),
        ((), "needs steps and parts"),
    ],
)
def test_parts_beyond_the_step_are_refused(parts: tuple[tuple[int, ...], ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _ledger(*parts)
