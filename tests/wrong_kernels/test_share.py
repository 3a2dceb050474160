"""The suites catch at least 95 % of the wrong kernels, and each catch is a verdict, not a crash."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.core.case import Case
from harness.core.op_table import OpTable
from harness.core.status import OpStatus
from harness.run.judge import Judge
from kernels.launch import backend_selected, lnc_selected, poisoned
from references.op_table import TABLE as REFERENCE
from suites.loader import load_op_suite
from tests.wrong_kernels.edits import WrongKernel, loaded, read_wrong_kernels

GOAL = 0.95
FEWEST = 40
WRONG = read_wrong_kernels()
_UNJUDGED = (OpStatus.UNSUPPORTED, OpStatus.SKIPPED, OpStatus.VACUOUS)


def judged(wrong: WrongKernel) -> tuple[OpStatus, str]:
    """(status, case) of the first case that catches it; (PASS, "") if none of the tier does."""
    suite = load_op_suite(wrong.op)
    with backend_selected("interpret"), lnc_selected(wrong.lnc), loaded(wrong) as op:
        table = OpTable({wrong.op: op}, fp8_max=240)
        judge = Judge(
            REFERENCE, table, suite.tolerances, "interpret", poison=poisoned, cores=lnc_selected
        )
        for case in suite.cases_of("default"):
            if case.op != wrong.op:
                continue
            status = judge.run(case).status
            # A case that was not judged has caught nothing.
            if status in _UNJUDGED:
                raise AssertionError(f"{wrong.name}: {case.case_id} is {status.value}")
            if status is not OpStatus.PASS:
                return status, case.case_id
    return OpStatus.PASS, ""


def test_every_edit_applies_to_exactly_one_place_and_compiles() -> None:
    assert len(WRONG) >= FEWEST
    for wrong in WRONG:
        compile(wrong.source(), wrong.file, "exec")


def test_an_edit_that_applies_nowhere_is_an_error() -> None:
    wrong = WrongKernel("x", "rms_norm", "rms_norm_nki.py", "no such text", "", "")
    with pytest.raises(ValueError, match="applies to 0 places"):
        wrong.source()


def test_the_right_kernel_is_back_after_a_wrong_one() -> None:
    case = Case("rms_norm", {"T": 5, "d": 64})
    wrong = next(entry for entry in WRONG if entry.op == "rms_norm")
    assert judged(wrong)[0] is not OpStatus.PASS
    from kernels.op_table import TABLE

    suite = load_op_suite("rms_norm")
    with backend_selected("interpret"):
        result = Judge(REFERENCE, TABLE, suite.tolerances, "interpret", poison=poisoned).run(case)
    assert result.status is OpStatus.PASS


@pytest.mark.slow
@pytest.mark.timeout(1800)  # some 160 kernels, each over its op's default tier until it is caught
def test_the_suites_catch_95_percent_of_the_wrong_kernels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdicts = {wrong.name: judged(wrong) for wrong in WRONG}
    survivors = [name for name, (status, _) in verdicts.items() if status is OpStatus.PASS]
    share = 1 - len(survivors) / len(verdicts)
    statuses = Counter(status.value for status, _ in verdicts.values())
    with capsys.disabled():
        print(f"\n{len(verdicts)} wrong kernels, {share:.1%} caught: {dict(statuses)}")
        print(f"survivors: {survivors}")
    assert share >= GOAL
    # An edit that only breaks the build would prove nothing about the suites.
    assert statuses[OpStatus.COMPILE_ERROR.value] <= 0.05 * len(verdicts)
