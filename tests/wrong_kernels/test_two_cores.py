"""Work that a second core forgets or repeats is caught by the cases of two cores alone."""

from __future__ import annotations

import pytest

from harness.core.op_table import OpTable
from harness.core.ops import OP_SHEET
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.judge import Judge
from kernels.launch import backend_selected, lnc_selected, poisoned
from references.op_table import TABLE as REFERENCE
from suites.loader import load_op_suite
from tests.wrong_kernels.edits import WrongKernel, loaded

# Of 2n + 1 units the first core has n + 1: with n the last unit is nobody's.
ODD_UNIT_LOST = (
    "per_core = ceil_div(num_units, nl.num_programs(0))",
    "per_core = max(1, num_units // nl.num_programs(0))",
)
FIRST_HALF_TWICE = (
    "first = min(per_core * nl.program_id(0), num_units)",
    "first = 0",
)


def results_on_two_cores(op: str, edit: tuple[str, str]) -> list[ParityResult]:
    suite = load_op_suite(op)
    wrong = WrongKernel("two_cores", op, "tiling.py", *edit, "")
    with backend_selected("interpret"), loaded(wrong) as kernel:
        judge = Judge(
            REFERENCE,
            OpTable({op: kernel}, fp8_max=240),
            suite.tolerances,
            "interpret",
            poison=poisoned,
            cores=lnc_selected,
        )
        cases = [c for c in suite.cases_of("default") if c.op == op and c.lnc == 2]
        return [judge.run(case) for case in cases]


@pytest.mark.parametrize("edit", [ODD_UNIT_LOST, FIRST_HALF_TWICE], ids=["odd", "twice"])
@pytest.mark.parametrize("op", sorted(OP_SHEET))
def test_a_wrong_share_of_the_work_fails(op: str, edit: tuple[str, str]) -> None:
    failed = [r for r in results_on_two_cores(op, edit) if r.status is not OpStatus.PASS]
    verdicts = [
        r
        for r in failed
        if r.status is not OpStatus.COMPILE_ERROR or "write the same cells" in r.message
    ]
    assert verdicts == failed
    assert verdicts


@pytest.mark.parametrize("op", ["vocab_argmax", "vocab_topk"])
def test_half_of_a_single_row_left_unseen_gives_wrong_ids(op: str) -> None:
    results = results_on_two_cores(op, FIRST_HALF_TWICE)
    assert OpStatus.OUT_OF_TOLERANCE in {result.status for result in results}
